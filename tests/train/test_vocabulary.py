"""Padding of the vocabulary changes nothing that is real."""

from pathlib import Path

import torch

from megalith.serve.generate import load_model
from tests.train.runs import corpus, train_alone


def test_padding_changes_neither_losses_nor_real_rows(tmp_path: Path) -> None:
    losses, rows, data = [], [], corpus(tmp_path)
    for multiple in ("4", "2", "1"):
        folder = tmp_path / multiple
        settings = ["--data-path", data, "--make-vocab-size-divisible-by", multiple]
        settings += ["--log-jsonl", str(folder / "log"), "--save", str(folder)]
        losses.append([record["lm loss"] for record in train_alone(*settings)])
        model, _, config = load_model(str(folder), None)
        assert config.model.padded_vocab_size == -(-257 // int(multiple)) * int(multiple)
        rows.append(model.word_embedding.weight[:257].detach())
    assert losses[0] == losses[1] == losses[2]
    assert torch.equal(rows[0], rows[1]) and torch.equal(rows[1], rows[2])

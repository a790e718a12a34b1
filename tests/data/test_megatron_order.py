"""What megatron-core 0.16.1 made of the same corpora, recorded in `megatron_order.json`.

Arrays of more than 24 numbers are recorded as BLAKE2b digests of their int64 values.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from megalith.config.batches import split_shares
from megalith.data.gpt import DocumentEnds, GPTDataset
from megalith.data.indexed import IndexedDataset, IndexedWriter
from megalith.data.mock import MockSequences
from megalith.data.order import sample_order, split_ranges

RECORDED = json.loads((Path(__file__).parent / "megatron_order.json").read_text())
EOD, VOCABULARY = 6, 50
PLAIN = DocumentEnds(EOD, mask_loss=False, reset_positions=False, hide_earlier=False)


def _lengths(documents: int, modulus: int) -> list[int]:
    return [(i * 7919 + 13) % modulus + 1 for i in range(documents)]


def _document(number: int, length: int) -> list[int]:
    return [(number * 31 + j * j * 7) % 48 + 1 for j in range(length)]


def _corpus(prefix: Path, lengths: Sequence[int], dtype: Any, end: Sequence[int]) -> IndexedDataset:
    with IndexedWriter(str(prefix), dtype) as writer:
        for number, length in enumerate(lengths):
            writer.add_document([[*_document(number, length), *end]])
    return IndexedDataset(str(prefix))


def _digest(*arrays: npt.ArrayLike) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for array in arrays:
        digest.update(np.ascontiguousarray(array, "<i8").tobytes())
    return digest.hexdigest()


def _check(found: npt.NDArray[Any], recorded: list[int] | str) -> None:
    flat = found.reshape(-1)
    assert (flat.tolist() if isinstance(recorded, list) else _digest(flat)) == recorded


@pytest.mark.parametrize("case", RECORDED["orders"], ids=lambda case: f"{case['documents']}")
def test_files_order_and_samples_are_those_of_megatron(case: Any, tmp_path: Path) -> None:
    lengths = _lengths(case["documents"], case["modulus"])
    corpus = _corpus(tmp_path / "a", lengths, np.uint16, [])
    for suffix in ("bin", "idx"):
        content = (tmp_path / f"a.{suffix}").read_bytes()
        assert hashlib.blake2b(content, digest_size=16).hexdigest() == case[suffix]
    ranges = split_ranges(split_shares(case["split"]), len(corpus))
    for recorded, range_, size in zip(case["splits"], ranges, case["sizes"], strict=True):
        assert list(range_) == (recorded["range"] if recorded else [range_[0]] * 2)
        if recorded and "samples" in recorded:
            numbers = np.arange(*range_, dtype=np.int32)
            order = sample_order(corpus.lengths, numbers, case["seq_length"], size, case["seed"])
            for name in ("documents", "bounds", "shuffle"):
                _check(getattr(order, name), recorded[name])
            dataset = GPTDataset(corpus, order, case["seq_length"], VOCABULARY, PLAIN)
            assert len(dataset) == recorded["samples"]
            tokens = [dataset.tokens(i)[:-1] for i in range(len(dataset))]
            assert not tokens or _digest(*tokens) == recorded["tokens"]


def test_fields_of_samples_are_those_of_megatron(tmp_path: Path) -> None:
    recorded = RECORDED["fields"]
    corpus = _corpus(tmp_path / "a", _lengths(60, 40), np.int32, [EOD])
    order = sample_order(corpus.lengths, np.arange(60, dtype=np.int32), 32, 70, 5)
    ends = DocumentEnds(EOD, mask_loss=True, reset_positions=True, hide_earlier=True)
    dataset = GPTDataset(corpus, order, 32, VOCABULARY, ends)
    batch = dataset.microbatch(range(len(dataset)), range(len(dataset)))
    assert len(dataset) == recorded["samples"] and batch.document_starts is not None
    fields = {
        "tokens": batch.tokens,
        "positions": batch.positions,
        "loss_mask": batch.loss_mask,
        "starts": batch.document_starts,
    }
    for name, field in fields.items():
        assert field[0].tolist() == recorded[f"first_{name}"], name
        assert _digest(field.numpy()) == recorded[name], name
    assert _digest(batch.labels.numpy()) == recorded["labels"]


def test_mock_samples_are_those_of_megatron() -> None:
    source = MockSequences(VOCABULARY, EOD)
    ranges = split_ranges((1, 1, 1), len(source.lengths))
    for recorded, range_, size in zip(RECORDED["mock"], ranges, (300, 20, 10), strict=True):
        assert list(range_) == recorded["range"]
        numbers = np.arange(*range_, dtype=np.int32)
        order = sample_order(source.lengths, numbers, 512, size, 1234)
        dataset = GPTDataset(source, order, 512, VOCABULARY, PLAIN)
        assert len(dataset) == recorded["samples"]
        assert _digest(*[dataset.tokens(i)[:-1] for i in range(size)]) == recorded["tokens"]


def test_splits_are_those_of_megatron() -> None:
    for key, recorded in RECORDED["splits"].items():
        text, sequences = key.split(" of ")
        for found, expected in zip(
            split_ranges(split_shares(text), int(sequences)), recorded, strict=True
        ):
            # A share of nothing is no split there, and an empty range here.
            assert list(found) == (expected or [found[0]] * 2), key


def test_shares_may_have_slashes_between() -> None:
    assert split_shares("949/50/1") == split_shares("949,50,1") == (949, 50, 1)

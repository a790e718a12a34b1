"""Samples and microbatches of a GPT's data."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from megalith.data.gpt import DocumentEnds, GPTDataset
from megalith.data.microbatch import Microbatch
from megalith.data.mock import MockSequences
from megalith.data.order import sample_order
from megalith.errors import MegalithError

EOD = 9
SEQUENCES = [[1, 2, 3, EOD], [4, 5, EOD], [6, EOD], [7, 8, 1, 2, 3, 4, 5, 6, EOD]]


class Listed:
    """Sequences from a list."""

    name = "listed"

    def __init__(self, sequences: list[list[int]]) -> None:
        self._sequences = sequences
        self.lengths = np.array([len(sequence) for sequence in sequences], np.int32)

    def read(self, sequence: int, start: int, stop: int) -> np.ndarray:
        return np.array(self._sequences[sequence][start:stop], np.int32)


def _dataset(samples: int = 12, **meaning: bool) -> GPTDataset:
    source = Listed(SEQUENCES)
    order = sample_order(source.lengths, np.arange(4, dtype=np.int32), 5, samples, 3)
    plain = {"mask_loss": False, "reset_positions": False, "hide_earlier": False}
    return GPTDataset(source, order, 5, 10, DocumentEnds(EOD, **plain | meaning))


def test_samples_follow_each_other_and_share_one_token() -> None:
    dataset = _dataset()
    order = sample_order(Listed(SEQUENCES).lengths, np.arange(4, dtype=np.int32), 5, 12, 3)
    stream = [token for document in order.documents for token in SEQUENCES[document]]
    for sample in range(len(dataset)):
        start = 5 * int(order.shuffle[sample])
        assert dataset.tokens(sample).tolist() == stream[start : start + 6]


def test_microbatch_is_shifted_by_one() -> None:
    batch = _dataset().microbatch([0, 3], [40, 41])
    for row, sample in enumerate((0, 3)):
        tokens = _dataset().tokens(sample)
        assert batch.tokens[row].tolist() == tokens[:-1].tolist()
        assert batch.labels[row].tolist() == tokens[1:].tolist()
    assert batch.sample_numbers.tolist() == [40, 41]
    assert batch.loss_mask.dtype == torch.float32 and batch.loss_mask.min() == 1.0
    assert batch.positions.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert batch.document_starts is None


def _fields(batch: Microbatch) -> dict[str, bytes | None]:
    return {
        name: None if value is None else value.numpy().tobytes()
        for name, value in vars(batch).items()
    }


@pytest.mark.parametrize("meaning", [{}, {"mask_loss": True}, {"hide_earlier": True}])
def test_padded_sample_leaves_no_trace(meaning: dict[str, bool]) -> None:
    """Sample 0, a padded sample, sample 0 again: the same bytes in every field."""
    dataset = _dataset(**meaning)
    first = dataset.microbatch([0], [0])
    before = _fields(first)
    padded = dataset.microbatch([len(dataset)], [0])
    assert padded.loss_mask.sum() == 0 and padded.tokens.sum() == 0 and padded.labels.sum() == 0
    padded.loss_mask.fill_(7)
    padded.positions.fill_(7)
    assert _fields(dataset.microbatch([0], [0])) == before == _fields(first)


@pytest.mark.parametrize(
    ("meaning", "check"),
    [
        (
            "mask_loss",
            lambda batch, row, i, start: batch.loss_mask[row, i] == (batch.tokens[row, i] != EOD),
        ),
        ("reset_positions", lambda batch, row, i, start: batch.positions[row, i] == i - start),
        ("hide_earlier", lambda batch, row, i, start: batch.document_starts[row, i] == start),
    ],
)
def test_end_of_document_means_what_is_asked(
    meaning: str, check: Callable[[Microbatch, int, int, int], bool]
) -> None:
    dataset = _dataset(**{meaning: True})
    batch = dataset.microbatch(range(len(dataset)), range(len(dataset)))
    assert (batch.tokens == EOD).any()
    for row in range(len(dataset)):
        start = 0
        for i in range(5):
            if i > 0 and batch.tokens[row, i - 1] == EOD:
                start = i
            assert check(batch, row, i, start), (row, i)


def test_token_without_embedding_is_refused_when_it_is_read() -> None:
    for foreign in (10, -1):
        source = Listed([[1, 2, 3], [4, foreign, 6]])
        order = sample_order(source.lengths, np.arange(2, dtype=np.int32), 5, None, 3)
        ends = DocumentEnds(EOD, mask_loss=False, reset_positions=False, hide_earlier=False)
        dataset = GPTDataset(source, order, 5, 10, ends)
        with pytest.raises(MegalithError, match=f"listed: holds token {foreign}, but the vocabul"):
            dataset.microbatch([0], [0])


def test_no_two_batches_share_memory() -> None:
    dataset = _dataset(reset_positions=True, hide_earlier=True)
    first, second = dataset.microbatch([0, 1], [0, 1]), dataset.microbatch([0, 1], [0, 1])
    before = _fields(second)
    for field in vars(first).values():
        field.fill_(1)
    assert _fields(second) == before == _fields(dataset.microbatch([0, 1], [0, 1]))


def test_mock_sequences_count_up_and_end() -> None:
    mock = MockSequences(7, 6)
    assert len(mock.lengths) == 100_000 and mock.lengths.min() == 1 and mock.lengths.max() == 4095
    length = int(mock.lengths[0])
    tokens = mock.read(0, 0, length)
    assert tokens[:8].tolist() == [1, 2, 3, 4, 5, 6, 0, 1] and tokens[-1] == 6
    assert mock.read(0, 3, 5).tolist() == [4, 5]


def test_bundled_text_is_utf8_json_with_text() -> None:
    lines = (Path(__file__).parents[2] / "examples" / "austen.jsonl").read_text().splitlines()
    assert len(lines) == 85 and all(isinstance(json.loads(line)["text"], str) for line in lines)

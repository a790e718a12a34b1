"""Samples come in Megatron-LM's order: checked against its walk, written out step by step."""

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.data.order import sample_order, split_ranges


def _walk(lengths: list[int], documents: list[int], seq_length: int) -> list[tuple[int, int]]:
    """Sample boundaries, token run by token run."""
    total = sum(lengths[document] for document in documents)
    rows, place, offset = [(0, 0)], 0, 0
    for _ in range((total - 1) // seq_length):
        remaining = seq_length + 1
        while remaining > 0:
            available = lengths[documents[place]] - offset
            remaining -= available
            if remaining <= 0:
                offset += remaining + available - 1
            else:
                place, offset = place + 1, 0
        rows.append((place, offset))
    return rows


def _by_hand(
    lengths: list[int], sequences: list[int], seq_length: int, samples: int | None, seed: int
) -> tuple[list[int], list[tuple[int, int]], list[int]]:
    total = sum(lengths[sequence] for sequence in sequences)
    epochs = 1
    while samples is not None and epochs * total < samples * seq_length + 1:
        epochs += 1
    separate = False
    if epochs > 1:
        assert samples is not None
        before = ((epochs - 1) * total - 1) // seq_length
        separate = samples - before < int(0.80 * ((total - 1) // seq_length))
    random = np.random.RandomState(seed)
    documents: list[int] = []
    for run in (epochs - 1, 1) if separate else (epochs,):
        part = np.array(sequences * run, dtype=np.int32)
        random.shuffle(part)
        documents += part.tolist()
    rows = _walk(lengths, documents, seq_length)
    shuffle: list[int] = []
    cuts = [0, before, len(rows) - 1] if separate else [0, len(rows) - 1]
    for start, stop in pairwise(cuts):
        places = np.arange(start, stop, dtype=np.uint32)
        random.shuffle(places)
        shuffle += places.tolist()
    return documents, rows, shuffle


@settings(max_examples=150, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 12), min_size=1, max_size=12).filter(lambda ns: sum(ns) > 0),
    seq_length=st.integers(1, 9),
    samples=st.none() | st.integers(1, 60),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_order_is_the_walk(
    lengths: list[int], seq_length: int, samples: int | None, seed: int, data: Any
) -> None:
    first = data.draw(st.integers(0, len(lengths) - 1))
    stop = data.draw(st.integers(first + 1, len(lengths)))
    sequences = list(range(first, stop))
    if sum(lengths[first:stop]) == 0:
        return
    array = np.array(lengths, np.int32)
    order = sample_order(array, np.array(sequences, np.int32), seq_length, samples, seed)
    documents, rows, shuffle = _by_hand(lengths, sequences, seq_length, samples, seed)
    assert order.documents.tolist() == documents
    assert order.bounds.tolist() == [list(row) for row in rows]
    assert order.shuffle.tolist() == shuffle
    assert samples is None or len(order) >= samples


def test_last_epoch_is_shuffled_apart_when_little_of_it_is_used() -> None:
    lengths = np.full(10, 10, np.int32)
    order = sample_order(lengths, np.arange(10, dtype=np.int32), 10, 22, 1)
    assert sorted(order.documents[:20].tolist()) == sorted([*range(10)] * 2)
    assert sorted(order.shuffle[:19].tolist()) == list(range(19))


@pytest.mark.parametrize(("samples", "apart"), [(179, True), (180, False)])
def test_last_epoch_is_shuffled_apart_below_four_fifths(samples: int, apart: bool) -> None:
    order = sample_order(np.full(7, 143, np.int32), np.arange(7, dtype=np.int32), 10, samples, 1)
    assert len(order) == 200  # 100 an epoch
    assert (sorted(order.shuffle[:100].tolist()) == list(range(100))) is apart


@pytest.mark.parametrize(
    ("split", "sequences", "expected"),
    [
        ("969,30,1", 1000, [(0, 969), (969, 999), (999, 1000)]),
        ("969,30,1", 85, [(0, 82), (82, 85), (85, 85)]),
        ("1,0,0", 7, [(0, 7), (7, 7), (7, 7)]),
        ("1,1,0", 5, [(0, 2), (2, 5), (5, 5)]),  # 2.5 rounds to even
        ("1,1,0", 7, [(0, 4), (4, 7), (7, 7)]),
    ],
)
def test_split_rounds_as_python_does(
    split: str, sequences: int, expected: list[tuple[int, int]]
) -> None:
    shares = [float(share) for share in re.findall(r"[.0-9]+", split)]
    assert split_ranges(shares, sequences) == expected

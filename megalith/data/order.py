"""Which tokens make which sample: Megatron-LM's order for the same seed, sizes and split."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

SEPARATE_BELOW = 0.80
"""The last epoch is shuffled by itself if less than this share of it is used."""


@dataclass(frozen=True)
class SampleOrder:
    """Three index arrays.

    `documents` [epochs x documents]: sequence numbers in the order in which they are read.
    `bounds` [samples + 1, 2]: where each sample begins, as (place in `documents`, token offset);
    a sample's last token is the next one's first. `shuffle` [samples]: the sample at each place.
    """

    documents: npt.NDArray[np.int32]
    bounds: npt.NDArray[np.int64]
    shuffle: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.shuffle)


def split_ranges(shares: Sequence[float], sequences: int) -> list[tuple[int, int]]:
    """First and end of the sequences of each split; Python's rounding, half to even."""
    bookends = [0.0]
    for share in np.array(shares, np.float64) / np.sum(shares, dtype=np.float64):
        bookends.append(bookends[-1] + float(share))
    places = [round(bookend * float(sequences)) for bookend in bookends]
    return list(pairwise(places))


def epochs_needed(tokens: int, seq_length: int, samples: int | None) -> int:
    """How often a split of so many tokens is repeated for the samples asked of it."""
    return 1 if samples is None else max(1, -(-(samples * seq_length + 1) // tokens))


def sample_order(
    lengths: npt.NDArray[np.int32],
    sequences: npt.NDArray[np.int32],
    seq_length: int,
    samples: int | None,
    seed: int,
) -> SampleOrder:
    """The order of the samples of a split.

    `lengths` are those of all sequences of the corpus, `sequences` the numbers of the split's own,
    which must hold at least one token. `samples` is how many are asked for (there may be more),
    None for what one epoch has.
    """
    tokens = int(lengths[sequences].sum(dtype=np.int64))
    epochs = epochs_needed(tokens, seq_length, samples)
    before_last = ((epochs - 1) * tokens - 1) // seq_length
    separate = (
        epochs > 1
        and samples is not None
        and samples - before_last < int(SEPARATE_BELOW * ((tokens - 1) // seq_length))
    )
    random = np.random.RandomState(seed)
    documents = _document_order(sequences, epochs, separate, random)
    bounds = _sample_bounds(lengths, documents, seq_length)
    shuffle = _shuffled(len(bounds) - 1, before_last if separate else None, random)
    return SampleOrder(documents, bounds, shuffle)


def _document_order(
    sequences: npt.NDArray[np.int32], epochs: int, separate: bool, random: np.random.RandomState
) -> npt.NDArray[np.int32]:
    runs = (epochs - 1, 1) if separate else (epochs,)
    parts = []
    for run in runs:
        part = np.tile(sequences.astype(np.int32), run)
        random.shuffle(part)
        parts.append(part)
    return np.concatenate(parts)


def _sample_bounds(
    lengths: npt.NDArray[np.int32], documents: npt.NDArray[np.int32], seq_length: int
) -> npt.NDArray[np.int64]:
    """Sample i begins at token i·s of the concatenated documents."""
    ends = np.cumsum(lengths[documents], dtype=np.int64)
    samples = (int(ends[-1]) - 1) // seq_length
    starts = np.arange(samples + 1, dtype=np.int64) * seq_length
    places = np.searchsorted(ends, starts, side="right")
    offsets = starts - (ends[places] - lengths[documents[places]])
    bounds = np.stack((places, offsets), axis=1)
    bounds[0] = 0  # even where empty documents come first
    return bounds


def _shuffled(
    samples: int, first_part: int | None, random: np.random.RandomState
) -> npt.NDArray[np.int64]:
    dtype = np.uint32 if samples < np.iinfo(np.uint32).max - 1 else np.int64
    cuts = [0, samples] if first_part is None else [0, first_part, samples]
    parts = []
    for start, stop in pairwise(cuts):
        part = np.arange(start, stop, dtype=dtype)
        random.shuffle(part)
        parts.append(part)
    return np.concatenate(parts).astype(np.int64)

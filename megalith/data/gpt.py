"""Samples of consecutive tokens for a causal language model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from megalith.config.schema import DataConfig
from megalith.data.microbatch import Microbatch
from megalith.data.order import SampleOrder

Tokens = npt.NDArray[np.int64]


class SequenceSource(Protocol):
    """Sequences of token ids with their lengths [sequences]."""

    @property
    def lengths(self) -> npt.NDArray[np.int32]: ...

    def read(self, sequence: int, start: int, stop: int) -> npt.NDArray[np.generic]:
        """The ids of a sequence from `start` to before `stop`."""
        ...


@dataclass(frozen=True)
class DocumentEnds:
    """What the end-of-document token `eod` means to a sample.

    `mask_loss`: nothing is to be predicted from it. `reset_positions`: positions start anew after
    it. `hide_earlier`: what follows does not attend to what stands up to it.
    """

    eod: int
    mask_loss: bool
    reset_positions: bool
    hide_earlier: bool

    @staticmethod
    def of(data: DataConfig, eod: int) -> "DocumentEnds":
        return DocumentEnds(
            eod, data.eod_mask_loss, data.reset_position_ids, data.reset_attention_mask
        )


class GPTDataset:
    """Samples of `seq_length` tokens, each with the token after it as its last label."""

    def __init__(
        self, source: SequenceSource, order: SampleOrder, seq_length: int, ends: DocumentEnds
    ) -> None:
        self._source, self._order, self._ends = source, order, ends
        self.seq_length = seq_length

    def __len__(self) -> int:
        return len(self._order)

    def tokens(self, sample: int) -> Tokens:
        """The seq_length + 1 ids of a sample, in an array of its own."""
        (first, start), (last, stop) = self._order.bounds[self._order.shuffle[sample] :][:2]
        documents = self._order.documents[first : last + 1]
        parts = []
        for place, document in enumerate(documents):
            low = int(start) if place == 0 else 0
            is_last = place == len(documents) - 1
            high = int(stop) + 1 if is_last else int(self._source.lengths[document])
            parts.append(self._source.read(int(document), low, high))
        return np.concatenate(parts, dtype=np.int64)

    def microbatch(self, samples: Sequence[int], sample_numbers: Sequence[int]) -> Microbatch:
        """Samples side by side; one beyond the last is padding, all zero and without loss."""
        rows = np.zeros((len(samples), self.seq_length + 1), np.int64)
        real = np.array([sample < len(self) for sample in samples], bool)
        for row in map(int, np.flatnonzero(real)):
            rows[row] = self.tokens(samples[row])
        tokens, labels = rows[:, :-1], rows[:, 1:]
        mask = np.ones(tokens.shape, np.float32) * real[:, None]
        if self._ends.mask_loss:
            mask[tokens == self._ends.eod] = 0.0
        places = np.broadcast_to(np.arange(self.seq_length), tokens.shape)
        starts = self._document_starts(tokens, places)
        return Microbatch(
            tokens=_tensor(tokens),
            labels=_tensor(labels),
            loss_mask=_tensor(mask),
            positions=_tensor(places - starts if self._ends.reset_positions else places),
            sample_numbers=torch.tensor(sample_numbers, dtype=torch.int64),
            document_starts=_tensor(starts) if self._ends.hide_earlier else None,
        )

    def _document_starts(self, tokens: Tokens, places: Tokens) -> Tokens:
        """For each token the place where its document begins; an end token ends its own."""
        after_end = np.zeros(tokens.shape, bool)
        after_end[:, 1:] = tokens[:, :-1] == self._ends.eod
        return np.maximum.accumulate(np.where(after_end, places, 0), axis=1)


def _tensor(array: npt.NDArray[np.generic]) -> torch.Tensor:
    """A tensor of its own memory, so that no two batches share any."""
    return torch.from_numpy(np.array(array, order="C"))

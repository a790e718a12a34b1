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
from megalith.errors import MegalithError

Tokens = npt.NDArray[np.int64]


class SequenceSource(Protocol):
    """Sequences of token ids with their lengths [sequences], and what messages call them."""

    @property
    def name(self) -> str: ...

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
    """Samples of `seq_length` tokens, each with the token after it as its last label.

    Reading one that holds an id which is not below `vocab_size` raises MegalithError.
    """

    def __init__(
        self,
        source: SequenceSource,
        order: SampleOrder,
        seq_length: int,
        vocab_size: int,
        ends: DocumentEnds,
    ) -> None:
        self._source, self._order, self._ends = source, order, ends
        self.seq_length, self._vocab_size = seq_length, vocab_size

    def __len__(self) -> int:
        return len(self._order)

    def tokens(self, sample: int) -> Tokens:
        """The seq_length + 1 ids of a sample, in an array of its own."""
        row = int(self._order.shuffle[sample])
        (first, start), (last, stop) = self._order.bounds[row : row + 2].tolist()
        documents = self._order.documents[first : last + 1]
        stops = self._source.lengths[documents].tolist()
        stops[-1] = stop + 1
        parts = []
        for document, end in zip(documents.tolist(), stops, strict=True):
            parts.append(self._source.read(document, start, end))
            start = 0
        return np.concatenate(parts, dtype=np.int64)

    def microbatch(self, samples: Sequence[int], sample_numbers: Sequence[int]) -> Microbatch:
        """Samples side by side; one beyond the last is padding, all zero and without loss."""
        shape = (len(samples), self.seq_length)
        tokens, labels = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        mask = np.zeros(shape, np.float32)
        for row, sample in enumerate(samples):
            if sample < len(self):
                ids = self.tokens(sample)
                self._check(ids)
                tokens[row], labels[row], mask[row] = ids[:-1], ids[1:], 1.0
        if self._ends.mask_loss:
            mask[tokens == self._ends.eod] = 0.0
        positions = np.tile(np.arange(self.seq_length), (len(samples), 1))
        starts = None
        if self._ends.reset_positions or self._ends.hide_earlier:
            starts = self._document_starts(tokens, positions)
            if self._ends.reset_positions:
                positions -= starts
        return Microbatch(
            tokens=torch.from_numpy(tokens),
            labels=torch.from_numpy(labels),
            loss_mask=torch.from_numpy(mask),
            positions=torch.from_numpy(positions),
            sample_numbers=torch.tensor(sample_numbers, dtype=torch.int64),
            document_starts=(
                None if starts is None or not self._ends.hide_earlier else torch.from_numpy(starts)
            ),
        )

    def _check(self, ids: Tokens) -> None:
        for extreme in (int(ids.max()), int(ids.min())):
            if not 0 <= extreme < self._vocab_size:
                raise foreign_token(self._source.name, extreme, self._vocab_size)

    def _document_starts(self, tokens: Tokens, places: Tokens) -> Tokens:
        """For each token the place where its document begins; an end token ends its own."""
        after_end = np.zeros(tokens.shape, bool)
        after_end[:, 1:] = tokens[:, :-1] == self._ends.eod
        return np.maximum.accumulate(np.where(after_end, places, 0), axis=1)


def foreign_token(name: str, token: int, vocab_size: int) -> MegalithError:
    """The error for an id that the vocabulary, and so the embedding, does not have."""
    return MegalithError(
        f"{name}: holds token {token}, but the vocabulary has {vocab_size} tokens. It was prepared "
        f"with another tokenizer than the one given now: give that one's --tokenizer-type and "
        f"files, or prepare the text anew."
    )

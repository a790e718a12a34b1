"""The data of a run: a corpus cut into train, validation and test."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from megalith.comm.collectives import all_reduce_sum
from megalith.comm.mesh import Mesh
from megalith.config.batches import split_shares
from megalith.config.schema import RunConfig
from megalith.data.gpt import DocumentEnds, GPTDataset, SequenceSource, foreign_token
from megalith.data.indexed import IndexedDataset
from megalith.data.mock import MockSequences
from megalith.data.order import epochs_needed, sample_order, split_ranges
from megalith.data.order_cache import cached_order
from megalith.data.sampler import Cyclic, InOrder, Sampler
from megalith.data.tokenizers import Tokenizer
from megalith.errors import MegalithError

SPLITS = ("train", "valid", "test")
_SUFFIX = "_text_document"
_PROBE_BYTES, _PROBES = 1 << 16, 64
_BYTES_PER_ENTRY = 16
"""Memory for each document of each epoch: its number, and its end while samples are cut."""


@dataclass(frozen=True)
class SplitSizes:
    """Samples that a run asks of each split; None for one pass over it, 0 for none."""

    train: int
    valid: int | None
    test: int | None


@dataclass(frozen=True)
class Split:
    """Samples and the order in which a run takes them."""

    dataset: GPTDataset
    sampler: Sampler

    def __len__(self) -> int:
        return len(self.dataset)


@dataclass(frozen=True)
class Datasets:
    """The splits of a run, None where it asks for none or the corpus has none.

    `identity` says what they are made of, `notices` why a split that was asked for is missing.
    """

    train: Split | None
    valid: Split | None
    test: Split | None
    identity: dict[str, Any]
    notices: list[str]


def build_datasets(
    config: RunConfig, tokenizer: Tokenizer, sizes: SplitSizes, mesh: Mesh
) -> Datasets:
    """Opens the corpus and puts its samples in order; every rank calls it.

    Raises MegalithError for missing or damaged files, tokens that the vocabulary does not have,
    and a split that the run asks samples of but that has none.
    """
    source, identity = _open(config, tokenizer)
    shares = split_shares(config.data.split)
    ranges = split_ranges(shares, len(source.lengths))
    if not mesh.is_main:
        _meet(mesh)  # the main rank fills the cache of orders; the others find it full
    splits: dict[str, Split | None] = {}
    notices: list[str] = []
    for name, share, sequences in zip(SPLITS, shares, ranges, strict=True):
        wanted = _Wanted(name, sequences, getattr(sizes, name))
        missing = _missing(config, source, wanted)
        if missing and name == "train":
            raise MegalithError(missing)
        if missing and share > 0:
            notices.append(missing)
        skipped = missing or wanted.samples == 0
        splits[name] = None if skipped else _split(config, tokenizer, source, wanted)
    if mesh.is_main:
        _meet(mesh)
    identity |= {
        "split": config.data.split,
        "seq_length": config.model.seq_length,
        "order": config.data.dataloader_type,
    }
    return Datasets(**splits, identity=identity, notices=notices)


def _meet(mesh: Mesh) -> None:
    """Waits until every rank is here."""
    all_reduce_sum(torch.zeros((), device=mesh.device), mesh.world)


@dataclass(frozen=True)
class _Wanted:
    """A split: its name, its range of sequences, and the samples asked of it."""

    name: str
    sequences: tuple[int, int]
    samples: int | None


def _open(config: RunConfig, tokenizer: Tokenizer) -> tuple[SequenceSource, dict[str, Any]]:
    """The sequences, and what tells them from others."""
    if config.data.mock_data:
        return MockSequences(config.model.vocab_size, tokenizer.eod), {"corpus": "mock"}
    corpus = IndexedDataset(find_prefix(config.data.data_path[0]))
    _check_vocabulary(corpus, config.model.vocab_size)
    return corpus, {"corpus": _fingerprint(corpus)}


def find_prefix(given: str) -> str:
    """The prefix of a pair of files: as given, or with the `_text_document` of prepared text."""
    candidates = [given, given + _SUFFIX]
    for prefix in candidates:
        if Path(f"{prefix}.idx").exists() or Path(f"{prefix}.bin").exists():
            return prefix
    looked = " nor ".join(f"{prefix}.idx" for prefix in candidates)
    raise MegalithError(
        f"--data-path {given}: there is neither {looked}. Prepare a corpus with `megalith data "
        f"prepare --input TEXT --output-prefix PREFIX` and give its prefix."
    )


def _check_vocabulary(corpus: IndexedDataset, vocab_size: int) -> None:
    """Tells a wrong tokenizer at the start, from the first tokens; all are checked when read."""
    probe = corpus.tokens[: 1 << 22]
    largest = int(probe.max()) if probe.size else 0
    if largest >= vocab_size:
        raise foreign_token(corpus.name, largest, vocab_size)


def _fingerprint(corpus: IndexedDataset) -> str:
    """A digest of the index and of pieces of the tokens spread over the whole file."""
    digest = hashlib.blake2b(np.memmap(corpus.index_path, "u1", "r").data, digest_size=16)
    content = corpus.tokens.view("u1")
    stride = max(len(content) // _PROBES, _PROBE_BYTES)
    for start in range(0, len(content), stride):
        digest.update(content[start : start + _PROBE_BYTES].tobytes())
    return digest.hexdigest()


def _missing(config: RunConfig, source: SequenceSource, wanted: _Wanted) -> str | None:
    """Why a split has no sample; None where it has some, or none is asked for."""
    tokens = int(source.lengths[slice(*wanted.sequences)].sum(dtype="i8"))
    length = config.model.seq_length
    least = length + 1 if wanted.samples is None or _is_cyclic(config, wanted) else 1
    if wanted.samples == 0 or tokens >= least:
        return None
    count = wanted.sequences[1] - wanted.sequences[0]
    train = wanted.name == "train"
    way_out = "more text" if train else "--eval-iters 0 to train without evaluation"
    return (
        f"{source.name}: the {wanted.name} split has {count} of {len(source.lengths)} documents "
        f"with {tokens} tokens (--split {config.data.split}), too few for a sample of --seq-length "
        f"{length}. Give another --split, a shorter --seq-length, or {way_out}."
    )


def _is_cyclic(config: RunConfig, wanted: _Wanted) -> bool:
    return wanted.name == "train" and config.data.dataloader_type == "cyclic"


def _split(
    config: RunConfig, tokenizer: Tokenizer, source: SequenceSource, wanted: _Wanted
) -> Split:
    cyclic, seed = _is_cyclic(config, wanted), config.training.seed
    length = config.model.seq_length
    samples = None if cyclic else wanted.samples
    _check_memory(source, wanted, length, samples)
    if isinstance(source, IndexedDataset):
        folder = _cache_folder(config, source)
        order = cached_order(folder, source.lengths, wanted.sequences, length, samples, seed)
    else:
        numbers = np.arange(*wanted.sequences, dtype=np.int32)
        order = sample_order(source.lengths, numbers, length, samples, seed)
    ends = DocumentEnds.of(config.data, tokenizer.eod)
    dataset = GPTDataset(source, order, length, config.model.vocab_size, ends)
    return Split(dataset, Cyclic(len(dataset), seed) if cyclic else InOrder())


def _check_memory(
    source: SequenceSource, wanted: _Wanted, seq_length: int, samples: int | None
) -> None:
    """A split of a few tokens, repeated for a long run, may need more memory than there is."""
    count = wanted.sequences[1] - wanted.sequences[0]
    tokens = int(source.lengths[slice(*wanted.sequences)].sum(dtype="i8"))
    epochs = epochs_needed(tokens, seq_length, samples)
    needed = _BYTES_PER_ENTRY * epochs * count
    there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if needed > there:
        raise MegalithError(
            f"{source.name}: the {wanted.name} split has {tokens:,} tokens in {count:,} documents, "
            f"so {samples:,} samples of {seq_length:,} repeat it {epochs:,} times. To order that "
            f"takes {needed / 1e9:,.0f} GB of memory; this machine has {there / 1e9:,.0f} GB. Give "
            f"this split more in --split, use more text, or ask for fewer samples."
        )


def _cache_folder(config: RunConfig, corpus: IndexedDataset) -> Path:
    if config.data.data_cache_path is not None:
        return Path(config.data.data_cache_path)
    return Path(corpus.prefix).parent / "cache" / "sample_orders"

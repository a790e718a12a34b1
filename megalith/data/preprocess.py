"""Text to token files: `megalith data prepare`."""

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np
import numpy.typing as npt

from megalith.config.derive import derive_tokenizer
from megalith.config.schema import PrepareConfig, TokenizerConfig
from megalith.data.corpus import Corpus, Document
from megalith.data.indexed import IndexedWriter, token_dtype
from megalith.data.tokenizers import Tokenizer, build_tokenizer
from megalith.data.workers import WorkerDied, map_in_processes
from megalith.errors import MegalithError

_BATCH_BYTES = 1 << 20

Encoded = dict[str, npt.NDArray[np.generic]]


@dataclass
class Summary:
    """What was prepared. `tokens` are of all keys together."""

    documents: int = 0
    without_tokens: int = 0
    blank_lines: int = 0
    tokens: int = 0
    megabytes: float = 0.0
    seconds: float = 0.0

    def rates(self) -> str:
        seconds = max(self.seconds, 1e-9)
        return f"{self.documents / seconds:.1f} docs/s, {self.megabytes / seconds:.2f} MB/s"


def prepare(config: PrepareConfig, say: Callable[[str], None] = print) -> Summary:
    """Tokenises a corpus into `{output_prefix}_{key}_document.bin` and `.idx`, in its order.

    Raises MegalithError for unusable settings, input or output; then no output file is there.
    """
    tokenizer_config = derive_tokenizer(config.tokenizer)
    tokenizer = _checked_tokenizer(tokenizer_config)
    path = Path(config.input)
    if len(set(config.json_keys)) < len(config.json_keys):
        raise MegalithError(f"--json-keys {' '.join(config.json_keys)}: names a field twice")
    if not path.is_file():
        raise MegalithError(f"--input {path}: there is no such file")
    corpus = Corpus(path, config.json_keys)
    began, summary = perf_counter(), Summary()
    with ExitStack() as stack:
        writers = _writers(config, tokenizer, stack)
        for document, encoded in _encode_all(corpus, config, tokenizer_config):
            for key, tokens in encoded.items():
                writers[key].add_document([tokens])
            _count(summary, document, encoded, perf_counter() - began)
            if summary.documents % config.log_interval == 0:
                say(f"Processed {summary.documents} documents ({summary.rates()}).")
        if summary.documents == 0:
            raise MegalithError(
                f"--input {path}: has no documents, so there is nothing to train on"
            )
    summary.blank_lines = corpus.blank_lines
    say(_report(summary, config))
    return summary


def _checked_tokenizer(config: TokenizerConfig) -> Tokenizer:
    if config.tokenizer_type == "GPT2BPETokenizer" and not (
        config.vocab_file and config.merge_file
    ):
        missing = "--merge-file" if config.vocab_file else "--vocab-file"
        raise MegalithError(f"{missing} is missing: GPT2BPETokenizer needs both of its files")
    return build_tokenizer(config)


def _writers(
    config: PrepareConfig, tokenizer: Tokenizer, stack: ExitStack
) -> dict[str, IndexedWriter]:
    dtype = token_dtype(tokenizer.vocab_size)
    return {
        key: stack.enter_context(IndexedWriter(f"{config.output_prefix}_{key}_document", dtype))
        for key in config.json_keys
    }


def _encode_all(
    documents: Iterable[Document], config: PrepareConfig, tokenizer: TokenizerConfig
) -> Iterator[tuple[Document, Encoded]]:
    """Documents with their tokens, in order; `workers` processes share the work."""
    encode = functools.partial(_encode_batch, tokenizer=tokenizer, append_eod=config.append_eod)
    batches = _batches(documents)
    if config.workers == 1:
        results: Iterator[tuple[list[Document], list[Encoded]]] = (
            (batch, encode(batch)) for batch in batches
        )
    else:
        results = map_in_processes(encode, batches, config.workers)
    try:
        for batch, encoded in results:
            yield from zip(batch, encoded, strict=True)
    except WorkerDied as error:
        raise MegalithError(
            "a tokenising process died: killed from outside, or out of memory (see the "
            "kernel's log, dmesg). No output was written; try fewer --workers."
        ) from error


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += document.size
        if size >= _BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _encode_batch(
    documents: list[Document], tokenizer: TokenizerConfig, append_eod: bool
) -> list[Encoded]:
    engine = _process_tokenizer(tokenizer)
    return [
        {key: _encode(text, engine, append_eod) for key, text in document.texts.items()}
        for document in documents
    ]


@functools.cache
def _process_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """Built once in each process."""
    return build_tokenizer(config)


def _encode(text: str, tokenizer: Tokenizer, append_eod: bool) -> npt.NDArray[np.generic]:
    """A text's tokens; only one that has any is closed by the end-of-document token."""
    ids = tokenizer.encode(text)
    if ids and append_eod:
        ids.append(tokenizer.eod)
    return np.array(ids, token_dtype(tokenizer.vocab_size))


def _count(summary: Summary, document: Document, encoded: Encoded, seconds: float) -> None:
    tokens = sum(len(ids) for ids in encoded.values())
    summary.documents += 1
    summary.without_tokens += tokens == 0
    summary.tokens += tokens
    summary.megabytes += document.size / 1e6
    summary.seconds = seconds


def _report(summary: Summary, config: PrepareConfig) -> str:
    names = ", ".join(f"{config.output_prefix}_{key}_document" for key in config.json_keys)
    empty, blank = summary.without_tokens, summary.blank_lines
    note = f", {empty:,} of them empty" if empty else ""
    skipped = f"; {blank:,} blank lines were passed over" if blank else ""
    return (
        f"Prepared {summary.documents:,} documents{note} with {summary.tokens:,} tokens in "
        f"{summary.seconds:.1f} s ({summary.rates()}): {names}.bin and .idx{skipped}"
    )

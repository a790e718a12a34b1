"""Text to token ids and back."""

import hashlib
import json
from pathlib import Path
from typing import Any, Protocol

import tokenizers

from megalith.config.schema import TokenizerConfig
from megalith.errors import MegalithError


class Tokenizer(Protocol):
    """What turns text into token ids.

    `vocab_size` counts all ids, special ones included; `eod` is the id that ends a document.
    `identity` differs between tokenizers that give different ids.
    """

    @property
    def vocab_size(self) -> int: ...

    @property
    def eod(self) -> int: ...

    @property
    def identity(self) -> str: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: list[int]) -> str: ...


class ByteLevelTokenizer:
    """Each byte of the UTF-8 text is a token; id 256 ends a document. Needs no files."""

    vocab_size = 257
    eod = 256
    identity = "bytes"

    def encode(self, text: str) -> list[int]:
        """Lone surrogates, which have no UTF-8, become question marks."""
        return list(text.encode("utf-8", "replace"))

    def decode(self, ids: list[int]) -> str:
        """Ids that are no bytes are left out; broken UTF-8 becomes the replacement character."""
        return bytes(token for token in ids if token < self.eod).decode("utf-8", "replace")


END_OF_TEXT = "<|endoftext|>"
LARGEST_ID = 2**31 - 1


class GPT2BPETokenizer:
    """GPT-2's byte-level byte-pair encoding (Radford et al. 2019), from its two files.

    The text `<|endoftext|>` has no special meaning: a corpus cannot forge the end of a document.
    """

    def __init__(self, vocabulary: Path, merges: Path) -> None:
        ids = _read_vocabulary(vocabulary)
        self.eod = ids[END_OF_TEXT]
        self.vocab_size = max(ids.values()) + 1
        pairs = _read_merges(merges, ids)
        self.identity = _digest(ids, pairs)
        self._tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(ids, pairs))
        self._tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
        self._tokenizer.decoder = tokenizers.decoders.ByteLevel()

    def encode(self, text: str) -> list[int]:
        """Lone surrogates, which have no UTF-8, become question marks."""
        clean = text.encode("utf-8", "replace").decode("utf-8")
        ids: list[int] = self._tokenizer.encode(clean, add_special_tokens=False).ids
        return ids

    def decode(self, ids: list[int]) -> str:
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text


def build_tokenizer(config: TokenizerConfig) -> Tokenizer:
    """The tokenizer of a resolved configuration; raises MegalithError for unusable files."""
    if config.tokenizer_type == "ByteLevelTokenizer":
        return ByteLevelTokenizer()
    assert config.vocab_file is not None and config.merge_file is not None
    return GPT2BPETokenizer(Path(config.vocab_file), Path(config.merge_file))


def _read_vocabulary(path: Path) -> dict[str, int]:
    try:
        ids: Any = json.loads(_read(path, "--vocab-file"))
    except (ValueError, RecursionError) as error:
        line, problem = getattr(error, "lineno", 1), getattr(error, "msg", error)
        raise MegalithError(
            f"--vocab-file {path}:{line}: this is no JSON ({problem}). GPT-2's vocabulary is a "
            f"JSON object from token to id (vocab.json or encoder.json), under any name."
        ) from error
    if not isinstance(ids, dict) or not all(type(value) is int for value in ids.values()):
        raise MegalithError(f"--vocab-file {path}: must be a JSON object from token to id")
    unusable = [token for token, value in ids.items() if not 0 <= value <= LARGEST_ID]
    if unusable:
        raise MegalithError(
            f"--vocab-file {path}: token {unusable[0]!r} has the id {ids[unusable[0]]}; ids must "
            f"be from 0 to {LARGEST_ID}"
        )
    if END_OF_TEXT not in ids:
        raise MegalithError(
            f"--vocab-file {path}: has no {END_OF_TEXT}, which ends documents in GPT-2's vocabulary"
        )
    missing = sorted(set(tokenizers.pre_tokenizers.ByteLevel.alphabet()) - ids.keys())
    if missing:
        raise MegalithError(
            f"--vocab-file {path}: lacks {len(missing)} of the 256 tokens of single bytes, such as "
            f"{missing[0]!r}, so text with these bytes could not be kept. This is no vocabulary of "
            f"GPT-2's kind."
        )
    return ids


def _read_merges(path: Path, ids: dict[str, int]) -> list[tuple[str, str]]:
    """The pairs of a merges file, most frequent first; a first line `#version` is no pair."""
    pairs = []
    for number, line in enumerate(_read(path, "--merge-file").split("\n"), start=1):
        if not line.strip() or (number == 1 and line.startswith("#version")):
            continue
        left, _, right = line.rstrip("\r").partition(" ")
        if left + right not in ids or left not in ids or right not in ids:
            raise MegalithError(
                f"--merge-file {path}:{number}: {line!r} is no pair of tokens that --vocab-file "
                f"knows. The two files must belong together (vocab.json and merges.txt of one "
                f"model)."
            )
        pairs.append((left, right))
    return pairs


def _read(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MegalithError(f"{setting} {path}: cannot read this file: {error}") from error


def _digest(ids: dict[str, int], pairs: list[tuple[str, str]]) -> str:
    content = json.dumps([sorted(ids.items()), pairs])
    return "gpt2-bpe/" + hashlib.blake2b(content.encode(), digest_size=16).hexdigest()

"""Text files as streams of documents."""

import codecs
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from megalith.errors import MegalithError

JSON_LINES = (".jsonl", ".json")
PLAIN_TEXT = ".txt"


@dataclass(frozen=True)
class Document:
    """The texts of a document by key, and its size in the file in bytes."""

    texts: dict[str, str]
    size: int


class Corpus:
    """The documents of a file of JSON objects, one a line, or of a plain text, which is one.

    `blank_lines` counts the lines that were passed over so far. Iterating raises MegalithError,
    naming file and line, for what cannot be read.
    """

    def __init__(self, path: Path, keys: Sequence[str]) -> None:
        self.blank_lines = 0
        self._path, self._keys = path, keys
        if path.suffix not in (*JSON_LINES, PLAIN_TEXT):
            raise MegalithError(
                f"--input {path}: documents are read from .jsonl or .json (an object a line) or "
                f".txt (the file is one document); rename or convert the file."
            )
        if path.suffix == PLAIN_TEXT and list(keys) != ["text"]:
            raise MegalithError(f"--json-keys {' '.join(keys)}: {path} is plain text, without keys")

    def __iter__(self) -> Iterator[Document]:
        try:
            yield from self._read_text() if self._path.suffix == PLAIN_TEXT else self._read_lines()
        except OSError as error:
            raise MegalithError(f"--input {self._path}: cannot be read: {error}") from error

    def _read_text(self) -> Iterator[Document]:
        content = self._path.read_bytes()
        if content:
            yield Document({"text": _decode(content, self._path, 1)}, len(content))

    def _read_lines(self) -> Iterator[Document]:
        with open(self._path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if not line.strip():
                    self.blank_lines += 1
                    continue
                record = _parse(_decode(line, self._path, number), self._path, number)
                texts = {key: _text(record, key, self._path, number) for key in self._keys}
                yield Document(texts, len(line))


def _decode(content: bytes, path: Path, line: int) -> str:
    """Text of UTF-8 that begins at a line; a byte order mark at the file's start is no text."""
    if line == 1:
        content = content.removeprefix(codecs.BOM_UTF8)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line += content[: error.start].count(b"\n")
        raise MegalithError(
            f"{path}:{line}: is no UTF-8 ({error.reason} at byte {error.start}). Convert the file, "
            f"for example with `iconv -t utf-8`."
        ) from error


def _parse(line: str, path: Path, number: int) -> dict[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        problem = str(error)
        if isinstance(error, json.JSONDecodeError):
            problem = f"{error.msg} at column {error.colno}"
        raise MegalithError(
            f"{path}:{number}: is no JSON ({problem}). Each line must be an object such as "
            f'{{"text": "..."}}.'
        ) from error
    if not isinstance(record, dict):
        raise MegalithError(f"{path}:{number}: is no JSON object but {type(record).__name__}")
    return record


def _text(record: dict[str, object], key: str, path: Path, number: int) -> str:
    if key not in record:
        raise MegalithError(
            f"{path}:{number}: has no key {key!r}; its keys are {', '.join(record)}. Name the one "
            f"that holds the text with --json-keys."
        )
    text = record[key]
    if not isinstance(text, str):
        raise MegalithError(f"{path}:{number}: the value of {key!r} is no text but {text!r:.60}")
    return text

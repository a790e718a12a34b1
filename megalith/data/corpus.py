"""Text files as streams of documents."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from megalith.errors import MegalithError


@dataclass(frozen=True)
class Document:
    """The texts of a document by key, and its size in the file in bytes."""

    texts: dict[str, str]
    size: int


def read_corpus(path: Path, keys: Sequence[str]) -> Iterator[Document]:
    """The documents of a `.jsonl` file, one a line, or a `.txt` file, which is one document.

    Raises MegalithError, naming file and line, for what cannot be read.
    """
    if path.suffix == ".jsonl":
        return _read_jsonl(path, keys)
    if path.suffix == ".txt":
        return _read_text(path, keys)
    raise MegalithError(
        f"--input {path}: documents are read from .jsonl (an object a line) or .txt (the file is "
        f"one document); rename or convert the file."
    )


def _read_text(path: Path, keys: Sequence[str]) -> Iterator[Document]:
    if list(keys) != ["text"]:
        raise MegalithError(f"--json-keys {' '.join(keys)}: {path} is plain text, without keys")
    content = path.read_bytes()
    yield Document({"text": _decode(content, path, 1)}, len(content))


def _read_jsonl(path: Path, keys: Sequence[str]) -> Iterator[Document]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                record = _parse(_decode(line, path, number), path, number)
                yield Document({key: _text(record, key, path, number) for key in keys}, len(line))


def _decode(content: bytes, path: Path, line: int) -> str:
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
    except json.JSONDecodeError as error:
        raise MegalithError(
            f"{path}:{number}: is no JSON ({error.msg} at column {error.colno}). Each line must be "
            f'an object such as {{"text": "..."}}.'
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

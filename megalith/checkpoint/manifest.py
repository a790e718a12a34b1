"""What a checkpoint holds and where: `manifest.json`, described in docs/checkpoint-format.md."""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from megalith.errors import MegalithError

FORMAT, FORMAT_VERSION = "megalith-checkpoint", 1
MANIFEST_NAME = "manifest.json"
LARGEST_MANIFEST = 1 << 30
_SEAL = ',\n "checksum": '


@dataclass(frozen=True)
class StoredRectangle:
    """A box of a global tensor, and the entry `key` of the shard file that holds it."""

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    key: str


@dataclass(frozen=True)
class StoredTensor:
    """A global tensor: its shape, its dtype as PyTorch names it, and the boxes it is cut into."""

    shape: tuple[int, ...]
    dtype: str
    rectangles: tuple[StoredRectangle, ...]


@dataclass(frozen=True)
class StoredFile:
    """A shard file: its size, and a CRC-32 of each `block_bytes` of it."""

    bytes: int
    block_bytes: int
    checksums: tuple[int, ...]


@dataclass(frozen=True)
class Contents:
    """Tensors and the files that hold them."""

    tensors: Mapping[str, StoredTensor]
    files: Mapping[str, StoredFile]

    def to_json(self) -> dict[str, Any]:
        return {
            "tensors": {name: asdict(tensor) for name, tensor in self.tensors.items()},
            "files": {name: asdict(file) for name, file in self.files.items()},
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Contents":
        """Raises KeyError, TypeError or ValueError where `values` are not what `to_json` gives."""
        files = {name: _file(name, fields) for name, fields in values["files"].items()}
        tensors = {name: _tensor(fields, files) for name, fields in values["tensors"].items()}
        return Contents(tensors, files)


@dataclass(frozen=True)
class Manifest:
    """A checkpoint in `folder`: the run's resolved `config`, `state` besides tensors, contents."""

    folder: Path
    iteration: int
    config: dict[str, Any]
    state: dict[str, Any]
    contents: Contents

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        return self.contents.tensors


def manifest_text(
    iteration: int,
    config: Mapping[str, Any],
    state: Mapping[str, Any],
    layout: Mapping[str, int],
    contents: Contents,
    version: str,
) -> str:
    """The text of `manifest.json`."""
    values = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "megalith_version": version,
        "iteration": iteration,
        "layout": layout,
        "config": config,
        "state": state,
        **contents.to_json(),
    }
    return sealed(json.dumps(values, indent=1, allow_nan=False))


def sealed(text: str) -> str:
    """A JSON object's text with its own checksum as the last field: of all bytes before it."""
    body = text.removesuffix("\n}")
    return f"{body}{_SEAL}{zlib.crc32(body.encode())}\n}}"


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint folder; raises MegalithError where it cannot be used."""
    path = folder / MANIFEST_NAME
    text = _read(path)
    values = _parsed(path, text)
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise MegalithError(f"{path}: is no manifest of a Megalith checkpoint")
    version = values.get("format_version")
    if version != FORMAT_VERSION:
        raise MegalithError(
            f"{path}: has format version {version}, and this Megalith reads version "
            f"{FORMAT_VERSION}. It was written by another version of Megalith: use that one."
        )
    _require_seal(path, text)
    try:
        contents = Contents.from_json(values)
        config, state = dict(values["config"]), dict(values["state"])
        (iteration,) = _sizes([values["iteration"]])
        return Manifest(folder, iteration, config, state, contents)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise MegalithError(f"{path}: is damaged ({error!r}); use another checkpoint") from error


def _require_seal(path: Path, text: str) -> None:
    body, seal, _ = text.rpartition(_SEAL)
    if not seal or sealed(body) != text:
        raise MegalithError(
            f"{path}: is damaged: it does not match its checksum. Nothing was loaded; use an older "
            f"checkpoint (--ckpt-step)."
        )


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST_MANIFEST:
            raise MegalithError(f"{path}: is larger than any manifest can be; it is not read")
        return path.read_bytes().decode()
    except OSError as error:
        raise MegalithError(
            f"{path}: cannot be read ({error.strerror}): the folder holds no complete checkpoint"
        ) from error
    except UnicodeDecodeError as error:
        raise MegalithError(f"{path}: is damaged ({error}); use another checkpoint") from error


def _parsed(path: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MegalithError(f"{path}: is damaged ({error}); use another checkpoint") from error


def _tensor(fields: Mapping[str, Any], files: Mapping[str, StoredFile]) -> StoredTensor:
    shape = _sizes(fields["shape"])
    boxes = tuple(_rectangle(box, shape, files) for box in fields["rectangles"])
    return StoredTensor(shape, str(fields["dtype"]), boxes)


def _rectangle(
    fields: Mapping[str, Any], shape: tuple[int, ...], files: Mapping[str, StoredFile]
) -> StoredRectangle:
    box = StoredRectangle(
        _sizes(fields["offset"]), _sizes(fields["shape"]), str(fields["file"]), str(fields["key"])
    )
    if box.file not in files:
        raise ValueError(f"file {box.file!r} is not listed")
    for start, size, limit in zip(box.offset, box.shape, shape, strict=True):
        if start + size > limit:
            raise ValueError(f"a rectangle leaves its tensor: {box.offset} + {box.shape}")
    return box


def _file(name: str, fields: Mapping[str, Any]) -> StoredFile:
    if Path(name).name != name or name in ("", ".", "..") or "\0" in name:
        raise ValueError(f"file name {name!r} leaves the folder")
    size, block = _sizes([fields["bytes"], fields["block_bytes"]])
    checksums = _sizes(fields["checksums"])
    if size < 8 or block == 0 or len(checksums) != -(-size // block):
        raise ValueError(f"{name} has {len(checksums)} checksums for {size} bytes")
    return StoredFile(size, block, checksums)


def _sizes(values: Any) -> tuple[int, ...]:
    sizes = tuple(values)
    if not all(type(size) is int and 0 <= size < 1 << 62 for size in sizes):
        raise ValueError(f"{values!r:.80} are no sizes")
    return sizes

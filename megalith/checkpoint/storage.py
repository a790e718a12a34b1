"""Shard files: safetensors, with a checksum per block that is checked where it is read."""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from megalith.checkpoint.manifest import StoredFile, StoredRectangle
from megalith.errors import MegalithError

BLOCK_BYTES = 4 << 20


def write_shard(path: Path, tensors: Mapping[str, torch.Tensor]) -> StoredFile:
    """Writes tensors to a new file, on the disk when this returns; OSError where it cannot."""
    try:
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path)
    except SafetensorError as error:
        raise OSError(str(error)) from error
    to_disk(path)
    return StoredFile(path.stat().st_size, BLOCK_BYTES, tuple(_checksums(path, BLOCK_BYTES)))


def write_text(path: Path, text: str) -> None:
    """Writes a small file that is complete under its name, also if we die while writing it."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    to_disk(temporary)
    os.replace(temporary, path)
    to_disk(path.parent)


def to_disk(path: Path) -> None:
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksums(path: Path, block_bytes: int) -> Iterator[int]:
    with open(path, "rb") as file:
        while block := file.read(block_bytes):
            yield zlib.crc32(block)


class ShardReader:
    """Reads parts of one shard file; each block that a part lies in is checked once."""

    def __init__(self, folder: Path, name: str, stored: StoredFile) -> None:
        self._path, self._stored = folder / name, stored
        self._checked: set[int] = set()
        self._check_size()
        self._check_header()
        try:
            self._file: Any = safe_open(self._path, framework="pt")
        except SafetensorError as error:
            raise self._damaged(str(error)) from error
        self._ranges = self._read_ranges()

    def read(self, box: StoredRectangle, part: tuple[slice, ...], dtype: str) -> torch.Tensor:
        """The part of a stored rectangle, in its own coordinates."""
        if box.key not in self._ranges:
            raise self._damaged(f"it has no entry {box.key!r}")
        self._check_blocks(*self._ranges[box.key])
        entry = self._file.get_slice(box.key)
        if tuple(entry.get_shape()) != box.shape:
            raise self._damaged(f"{box.key!r} has shape {entry.get_shape()}, not {box.shape}")
        values: torch.Tensor = entry[part] if part else self._file.get_tensor(box.key)
        if str(values.dtype) != f"torch.{dtype}":
            raise self._damaged(f"{box.key!r} has dtype {values.dtype}, not {dtype}")
        return values

    def _check_size(self) -> None:
        try:
            size = self._path.stat().st_size
        except OSError as error:
            raise MegalithError(
                f"{self._path}: a part of the checkpoint cannot be read ({error.strerror}). Every "
                f"host must see the whole folder; use another checkpoint if the file is lost."
            ) from error
        if size != self._stored.bytes:
            raise self._damaged(f"it has {size:,} bytes, not {self._stored.bytes:,}")

    def _check_header(self) -> None:
        self._check_blocks(0, 8)
        with open(self._path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
        self._check_blocks(0, min(8 + header_bytes, self._stored.bytes))

    def _read_ranges(self) -> dict[str, tuple[int, int]]:
        """First and end byte of each entry, from the header, which safetensors found valid."""
        with open(self._path, "rb") as file:
            header_bytes = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_bytes))
        start = 8 + header_bytes
        return {
            key: (start + entry["data_offsets"][0], start + entry["data_offsets"][1])
            for key, entry in header.items()
            if key != "__metadata__"
        }

    def _check_blocks(self, start: int, end: int) -> None:
        size = self._stored.block_bytes
        with open(self._path, "rb") as file:
            for block in range(start // size, -(-end // size)):
                if block in self._checked:
                    continue
                file.seek(block * size)
                if zlib.crc32(file.read(size)) != self._stored.checksums[block]:
                    raise self._damaged(
                        f"bytes from {block * size:,} on do not match their checksum"
                    )
                self._checked.add(block)

    def _damaged(self, problem: str) -> MegalithError:
        return MegalithError(
            f"{self._path}: is damaged: {problem}. Nothing was loaded; use an older checkpoint "
            f"(--ckpt-step)."
        )

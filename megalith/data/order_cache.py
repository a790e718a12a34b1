"""Sample orders kept on disk, so that a large corpus is put in order once.

An order follows from the lengths of the sequences and four numbers; a digest of all of them is
the file's name, so a changed corpus never meets an old order.
"""

import hashlib
import json
import os
import uuid
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megalith.data.order import SampleOrder, sample_order

_VERSION = 2
_PARTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "documents": ("<i4", (-1,)),
    "bounds": ("<i8", (-1, 2)),
    "shuffle": ("<i8", (-1,)),
}
"""Type and shape of each array, whose file is its bare content."""


def cached_order(
    folder: Path,
    lengths: npt.NDArray[np.int32],
    sequences: tuple[int, int],
    seq_length: int,
    samples: int | None,
    seed: int,
) -> SampleOrder:
    """`sample_order` of a range of sequences; read from `folder`, or computed and stored there."""
    facts = [_VERSION, _digest(lengths), *sequences, seq_length, samples, seed]
    name = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
    found = _read(folder, name)
    if found is None:
        numbers = np.arange(*sequences, dtype=np.int32)
        found = sample_order(lengths, numbers, seq_length, samples, seed)
        _store(folder, name, found)
    return found


def _digest(lengths: npt.NDArray[np.int32]) -> str:
    content = np.ascontiguousarray(lengths).view("u1")
    return hashlib.blake2b(content.data, digest_size=16).hexdigest()


def _read(folder: Path, name: str) -> SampleOrder | None:
    """The stored order; None where it is not there or damaged."""
    try:
        checksums = json.loads((folder / f"{name}.json").read_bytes())
        arrays = {
            part: np.memmap(folder / f"{name}-{part}.raw", dtype, "r").reshape(shape)
            for part, (dtype, shape) in _PARTS.items()
        }
    except (OSError, ValueError):
        return None
    if checksums != [_checksum(array) for array in arrays.values()]:
        return None
    # Plain arrays, since slicing numpy's own class of mapped ones is slow.
    return SampleOrder(**{part: array.view(np.ndarray) for part, array in arrays.items()})


def _store(folder: Path, name: str, order: SampleOrder) -> None:
    arrays = {
        part: np.ascontiguousarray(getattr(order, part), dtype)
        for part, (dtype, _) in _PARTS.items()
    }
    checksums = json.dumps([_checksum(array) for array in arrays.values()])
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part, array in arrays.items():
            _write(folder / f"{name}-{part}.raw", array.data)
        _write(folder / f"{name}.json", checksums.encode())
    except OSError:
        # Data may lie where nothing can be written; then the order is computed at each start.
        return


def _write(path: Path, content: bytes | memoryview) -> None:
    """Under its final name a file is complete, also when several write it at once."""
    temporary = path.with_suffix(f".tmp-{uuid.uuid4().hex}")
    try:
        with open(temporary, "wb") as file:
            file.write(content)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _checksum(array: npt.NDArray[Any]) -> int:
    return zlib.crc32(array.reshape(-1).view("u1").data)

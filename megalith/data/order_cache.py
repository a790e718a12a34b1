"""Sample orders kept on disk, so that a large corpus is put in order once.

An order follows from the lengths of the sequences and four numbers; a digest of all of them is
the file's name, so a changed corpus never meets an old order.
"""

import hashlib
import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from megalith.data.order import SampleOrder, sample_order

_VERSION = 1
_PARTS = ("documents", "bounds", "shuffle")


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
    return hashlib.blake2b(np.ascontiguousarray(lengths).tobytes(), digest_size=16).hexdigest()


def _read(folder: Path, name: str) -> SampleOrder | None:
    """The stored order; None where it is not there or damaged."""
    try:
        checksums = json.loads((folder / f"{name}.json").read_text())
        arrays = [np.load(folder / f"{name}-{part}.npy", mmap_mode="r") for part in _PARTS]
    except (OSError, ValueError, EOFError):
        return None
    if checksums != [_checksum(array) for array in arrays]:
        return None
    return SampleOrder(*arrays)


def _store(folder: Path, name: str, order: SampleOrder) -> None:
    arrays = [getattr(order, part) for part in _PARTS]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part, array in zip(_PARTS, arrays, strict=True):
            _write(folder / f"{name}-{part}.npy", lambda file, array=array: np.save(file, array))
        checksums = json.dumps([_checksum(array) for array in arrays]).encode()
        _write(folder / f"{name}.json", lambda file: file.write(checksums))
    except OSError:
        # Data may lie where nothing can be written; then the order is computed at each start.
        return


def _write(path: Path, content: Any) -> None:
    """Under its final name a file is complete, also when several processes write it at once."""
    temporary = path.with_suffix(f".tmp-{os.getpid()}")
    with open(temporary, "wb") as file:
        content(file)
    os.replace(temporary, path)


def _checksum(array: npt.NDArray[Any]) -> int:
    return zlib.crc32(np.ascontiguousarray(array).data.cast("B"))

"""Token files: `P.bin` holds the ids of all sequences, `P.idx` where each begins.

The format is Megatron-LM's memory-mapped one. All integers are little-endian.
"""

import os
from array import array
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from io import BufferedWriter
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt

from megalith.errors import MegalithError

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
HEADER_BYTES = 34
DTYPES: dict[int, type[np.generic]] = {
    1: np.uint8, 2: np.int8, 3: np.int16, 4: np.int32,
    5: np.int64, 6: np.float64, 7: np.float32, 8: np.uint16,
}  # fmt: skip
CODES = {dtype: code for code, dtype in DTYPES.items()}
LARGEST_SHORT_VOCABULARY = 65500
LONGEST_SEQUENCE = 2**31 - 1


def token_dtype(vocab_size: int) -> type[np.generic]:
    """The type in which ids of a vocabulary are stored."""
    return np.uint16 if vocab_size < LARGEST_SHORT_VOCABULARY else np.int32


class IndexedDataset:
    """Sequences of token ids in a pair of files, mapped into memory and checked when opened.

    `lengths` [sequences] in tokens, `starts` [sequences] in tokens from the start of `tokens`,
    `documents` [documents + 1], the first sequence of each document and the end of the last.

    Raises MegalithError, naming file and field, where they do not fit each other or the format.
    """

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.index_path, self.bin_path = Path(f"{prefix}.idx"), Path(f"{prefix}.bin")
        self.name = f"--data-path {prefix}"
        index = _map(self.index_path)
        self.dtype, sequences, boundaries = _read_header(index, self.index_path)
        self.lengths, pointers, self.documents = _arrays(index, sequences, boundaries)
        self.starts = pointers // np.dtype(self.dtype).itemsize
        self._check(pointers)
        self.tokens = _map(self.bin_path).view(self.dtype)

    def __len__(self) -> int:
        return len(self.lengths)

    def read(self, sequence: int, start: int, stop: int) -> npt.NDArray[np.generic]:
        """The ids of a sequence from `start` to before `stop`; a view of the file."""
        first = int(self.starts[sequence])
        return self.tokens[first + start : first + stop]

    def _check(self, pointers: npt.NDArray[np.int64]) -> None:
        """Lengths, pointers, boundaries and the size of the .bin must agree."""
        path, width = self.index_path, np.dtype(self.dtype).itemsize
        ends = np.cumsum(self.lengths, dtype=np.int64)
        if len(self) and self.lengths.min() < 0:
            raise _damaged(path, "lengths", "a sequence has a negative length")
        if len(self) and (pointers[0] != 0 or not np.array_equal(pointers[1:], ends[:-1] * width)):
            raise _damaged(path, "pointers", "they are not the running sum of the lengths")
        boundaries = self.documents
        if boundaries[0] != 0 or boundaries[-1] != len(self) or (np.diff(boundaries) < 0).any():
            raise _damaged(path, "document boundaries", f"they do not rise from 0 to {len(self)}")
        expected = int(ends[-1]) * width if len(self) else 0
        actual = _size(self.bin_path)
        if actual != expected:
            raise MegalithError(
                f"{self.bin_path}: has {actual:,} bytes where {path} promises {expected:,}: one of "
                f"the two is truncated or belongs to another corpus. Prepare the data anew."
            )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise MegalithError(
            f"{path}: cannot be read ({error.strerror}). A corpus is a pair of files, .bin and "
            f".idx, as `megalith data prepare` writes them."
        ) from error


def _map(path: Path) -> npt.NDArray[np.uint8]:
    """The bytes of a file, mapped."""
    if _size(path) == 0:
        return np.zeros(0, np.uint8)
    try:
        return np.memmap(path, np.uint8, "r").view(np.ndarray)
    except OSError as error:
        raise MegalithError(f"{path}: cannot be read ({error.strerror})") from error


def _read_header(index: npt.NDArray[np.uint8], path: Path) -> tuple[type[np.generic], int, int]:
    """Token type and the two counts; the file's size must be what they promise."""
    header = index[:HEADER_BYTES].tobytes()
    if len(header) < HEADER_BYTES:
        raise _damaged(path, "header", f"the file has {len(header)} bytes, fewer than its header")
    if header[:9] != MAGIC:
        raise MegalithError(
            f"{path}: does not begin as an index file (field magic: {header[:9]!r}). Formats "
            f"before the memory-mapped one are not read; prepare the data anew."
        )
    version = int.from_bytes(header[9:17], "little")
    if version != VERSION:
        raise MegalithError(f"{path}: field version is {version}; only version 1 is known")
    if header[17] not in DTYPES:
        raise _damaged(path, "dtype", f"there is no type with code {header[17]}")
    dtype = DTYPES[header[17]]
    if not np.issubdtype(dtype, np.integer):
        raise MegalithError(f"{path}: field dtype says {dtype.__name__}, but tokens are integers")
    sequences = int.from_bytes(header[18:26], "little")
    boundaries = int.from_bytes(header[26:34], "little")
    # Compared before anything is allocated: a damaged count may be astronomic.
    promised = HEADER_BYTES + 12 * sequences + 8 * boundaries
    if promised != index.size or boundaries == 0:
        raise _damaged(
            path,
            "counts",
            f"{sequences:,} sequences and {boundaries:,} document boundaries take {promised:,} "
            f"bytes, but the file has {index.size:,}",
        )
    return dtype, sequences, boundaries


def _arrays(
    index: npt.NDArray[np.uint8], sequences: int, boundaries: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    first = HEADER_BYTES + 4 * sequences
    second = first + 8 * sequences
    lengths = np.frombuffer(index, "<i4", sequences, HEADER_BYTES)
    return (
        lengths,
        np.frombuffer(index, "<i8", sequences, first),
        np.frombuffer(index, "<i8", boundaries, second),
    )


def _damaged(path: Path, field: str, problem: str) -> MegalithError:
    return MegalithError(
        f"{path}: the file is damaged or truncated, field {field}: {problem}. "
        f"Prepare the data anew."
    )


class IndexedWriter:
    """Writes a pair of files; under their final names they are complete or not there.

    Used as a context manager, which makes the folder: leaving it without an error publishes the
    pair, the .idx last. Raises MegalithError where the files cannot be written.
    """

    def __init__(self, prefix: str, dtype: type[np.generic]) -> None:
        self._prefix, self._dtype = prefix, dtype
        self._lengths = array("i")
        self._boundaries = array("q", [0])
        self._bin: BufferedWriter | None = None

    def __enter__(self) -> "IndexedWriter":
        with self._writing():
            Path(self._prefix).parent.mkdir(parents=True, exist_ok=True)
            self._bin = open(self._temporary("bin"), "wb")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._bin is not None
        try:
            if error is None:
                with self._writing():
                    self._publish(self._bin)
        finally:
            for suffix in ("bin", "idx"):
                self._temporary(suffix).unlink(missing_ok=True)
            self._bin.raw.close()  # what is still buffered is published or not wanted

    def add_document(self, sequences: Iterable[npt.ArrayLike]) -> None:
        """Appends a document of any number of sequences; empty ones vanish.

        Raises MegalithError for a sequence whose length the format cannot hold.
        """
        assert self._bin is not None
        for sequence in sequences:
            tokens = np.asarray(sequence, dtype=self._dtype)
            if tokens.size > LONGEST_SEQUENCE:
                raise MegalithError(
                    f"{self._prefix}: document {len(self._boundaries)} has {tokens.size:,} tokens, "
                    f"more than the {LONGEST_SEQUENCE:,} that an index file can count. Cut it into "
                    f"several documents."
                )
            if tokens.size:
                with self._writing():
                    self._bin.write(tokens.tobytes())
                self._lengths.append(tokens.size)
        self._boundaries.append(len(self._lengths))

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise MegalithError(f"{self._prefix}: cannot be written: {error}") from error

    def _publish(self, bin_file: BufferedWriter) -> None:
        index = self._temporary("idx")
        with open(index, "wb") as file:
            file.write(self._index())
            _to_disk(file)
        _to_disk(bin_file)
        # An old index beside new tokens would be a wrong pair, should we die between the renames.
        Path(f"{self._prefix}.idx").unlink(missing_ok=True)
        os.replace(self._temporary("bin"), f"{self._prefix}.bin")
        os.replace(index, f"{self._prefix}.idx")

    def _index(self) -> bytes:
        lengths = np.array(self._lengths, "<i4")
        ends = np.cumsum(lengths, dtype="<i8") * np.dtype(self._dtype).itemsize
        pointers = np.concatenate((np.zeros(1, "<i8"), ends))[: len(lengths)]
        boundaries = np.array(self._boundaries, "<i8")
        numbers = (VERSION.to_bytes(8, "little"), CODES[self._dtype].to_bytes(1, "little"))
        counts = (len(lengths).to_bytes(8, "little"), len(boundaries).to_bytes(8, "little"))
        arrays = (lengths.tobytes(), pointers.tobytes(), boundaries.tobytes())
        return b"".join((MAGIC, *numbers, *counts, *arrays))

    def _temporary(self, suffix: str) -> Path:
        return Path(f"{self._prefix}.{suffix}.tmp-{os.getpid()}")


def _to_disk(file: BufferedWriter) -> None:
    file.flush()
    os.fsync(file.fileno())

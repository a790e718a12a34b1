"""Token files: byte for byte Megatron-LM's, and never trusted."""

import struct
from pathlib import Path

import numpy as np
import pytest

from megalith.data.indexed import IndexedDataset, IndexedWriter, token_dtype
from megalith.errors import MegalithError

DOCUMENTS = [[[1, 2, 3]], [], [[4], [], [5, 6]]]


def _write(prefix: Path, dtype: type[np.generic] = np.uint16) -> None:
    with IndexedWriter(str(prefix), dtype) as writer:
        for document in DOCUMENTS:
            writer.add_document(document)


def _index(dtype: int = 8, width: int = 2) -> bytes:
    """The index of DOCUMENTS, built by hand from the format's description."""
    return b"".join(
        [
            b"MMIDIDX\x00\x00",
            struct.pack("<QBQQ", 1, dtype, 3, 4),
            struct.pack("<3i", 3, 1, 2),
            struct.pack("<3q", 0, 3 * width, 4 * width),
            struct.pack("<4q", 0, 1, 1, 3),
        ]
    )


@pytest.mark.parametrize(("dtype", "code", "form"), [(np.uint16, 8, "<6H"), (np.int32, 4, "<6i")])
def test_files_are_the_format_byte_for_byte(
    dtype: type[np.generic], code: int, form: str, tmp_path: Path
) -> None:
    _write(tmp_path / "a", dtype)
    assert (tmp_path / "a.bin").read_bytes() == struct.pack(form, 1, 2, 3, 4, 5, 6)
    assert (tmp_path / "a.idx").read_bytes() == _index(code, struct.calcsize(form) // 6)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.bin", "a.idx"]


def test_sequences_and_documents_come_back(tmp_path: Path) -> None:
    _write(tmp_path / "a")
    dataset = IndexedDataset(str(tmp_path / "a"))
    assert [dataset.read(i, 0, n).tolist() for i, n in enumerate(dataset.lengths)] == [
        [1, 2, 3], [4], [5, 6],
    ]  # fmt: skip
    assert dataset.documents.tolist() == [0, 1, 1, 3]
    assert dataset.read(0, 1, 3).tolist() == [2, 3]


def test_type_follows_the_vocabulary() -> None:
    assert token_dtype(65499) is np.uint16 and token_dtype(65500) is np.int32


def test_empty_corpus_can_be_opened(tmp_path: Path) -> None:
    with IndexedWriter(str(tmp_path / "a"), np.uint16) as writer:
        writer.add_document([])
    assert len(IndexedDataset(str(tmp_path / "a"))) == 0


def _put(form: str, offset: int, *values: int) -> bytes:
    content = bytearray(_index())
    struct.pack_into(form, content, offset, *values)
    return bytes(content)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (b"", "field header: the file has 0 bytes"),
        (_index()[:20], "field header"),
        (b"TNTIDX\x00\x00" + _index()[8:], r"does not begin as an index file \(field magic"),
        (_put("<Q", 9, 2), "field version is 2"),
        (_put("<B", 17, 9), "field dtype: there is no type with code 9"),
        (_put("<B", 17, 7), "field dtype says float32, but tokens are integers"),
        (_put("<Q", 18, 1 << 60), "field counts: 1,152,921,504,606,846,976 sequences"),
        (_put("<Q", 26, 0), "field counts"),
        (_index()[:-1], "field counts: .*take 102 bytes, but the file has 101"),
        (_index() + b"x", "field counts"),
        (_put("<i", 34, -3), "field lengths: a sequence has a negative length"),
        (_put("<q", 46, 2), "field pointers"),
        (_put("<q", 54, 8), "field pointers"),
        (_put("<q", 70, 1), "field document boundaries: they do not rise from 0 to 3"),
        (_put("<q", 78, 5), "field document boundaries"),
        (_put("<q", 94, 2), "field document boundaries"),
    ],
)
def test_damaged_index_names_file_and_field(index: bytes, message: str, tmp_path: Path) -> None:
    _write(tmp_path / "a")
    (tmp_path / "a.idx").write_bytes(index)
    with pytest.raises(MegalithError, match=rf"a\.idx: .*{message}"):
        IndexedDataset(str(tmp_path / "a"))


def test_truncated_or_missing_tokens_are_told(tmp_path: Path) -> None:
    _write(tmp_path / "a")
    (tmp_path / "a.bin").write_bytes(b"12345")
    with pytest.raises(MegalithError, match=r"a\.bin: has 5 bytes where .*a\.idx promises 12"):
        IndexedDataset(str(tmp_path / "a"))
    (tmp_path / "a.bin").unlink()
    with pytest.raises(MegalithError, match=r"a\.bin: cannot be read"):
        IndexedDataset(str(tmp_path / "a"))


def test_sequence_too_long_for_the_format_is_refused(tmp_path: Path) -> None:
    endless = np.broadcast_to(np.uint16(1), 2**31)
    message = r"document 1 has 2,147,483,648 tokens, more than the 2,147,483,647"
    with (
        pytest.raises(MegalithError, match=message),
        IndexedWriter(str(tmp_path / "a"), np.uint16) as writer,
    ):
        writer.add_document([endless])
    assert list(tmp_path.iterdir()) == []


def test_pair_that_cannot_be_published_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.bin").mkdir()
    with pytest.raises(MegalithError, match=r"a: cannot be written: .*directory"):
        _write(tmp_path / "a")
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_failed_writing_leaves_what_was_there(tmp_path: Path) -> None:
    _write(tmp_path / "a")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    with pytest.raises(RuntimeError), IndexedWriter(str(tmp_path / "a"), np.uint16) as writer:
        writer.add_document([[7]])
        raise RuntimeError
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before

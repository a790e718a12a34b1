"""Preparing a corpus: its order, its counts, and what is wrong with it."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from megalith.config.flags import parse_prepare
from megalith.data.indexed import IndexedDataset
from megalith.data.preprocess import prepare
from megalith.errors import MegalithError

ROOT = Path(__file__).parents[2]


def _prepare(source: Path, *words: str) -> tuple[list[str], str]:
    """What was said, and the output prefix."""
    said: list[str] = []
    prefix = str(source.parent / "out" / "corpus")
    arguments = ["--input", str(source), "--output-prefix", prefix, *words]
    prepare(parse_prepare(arguments)[0], said.append)
    return said, prefix


def _jsonl(folder: Path, *records: Any, name: str = "in.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def _texts(prefix: str, key: str = "text") -> list[bytes]:
    dataset = IndexedDataset(f"{prefix}_{key}_document")
    return [bytes(dataset.read(i, 0, n).astype("u1")) for i, n in enumerate(dataset.lengths)]


@pytest.mark.parametrize("workers", ["1", "3"])
def test_order_is_that_of_the_input(workers: str, tmp_path: Path) -> None:
    texts = [f"document {i} " * (i % 50) * 40 for i in range(1, 150)]
    source = _jsonl(tmp_path, *({"text": text} for text in texts))
    _, prefix = _prepare(source, "--workers", workers)
    assert _texts(prefix) == [text.encode() for text in texts if text]


def test_documents_end_and_empty_ones_keep_their_place(tmp_path: Path) -> None:
    source = _jsonl(tmp_path, {"text": "ab"}, {"text": ""}, {"text": "c"})
    said, prefix = _prepare(source, "--append-eod")
    dataset = IndexedDataset(f"{prefix}_text_document")
    assert dataset.tokens.tolist() == [97, 98, 256, 99, 256]
    assert dataset.documents.tolist() == [0, 1, 1, 2]
    assert "Prepared 3 documents, 1 of them empty with 5 tokens" in said[-1]


def test_each_key_makes_a_pair_of_its_own(tmp_path: Path) -> None:
    source = _jsonl(tmp_path, {"text": "a", "title": "b", "other": 1})
    _, prefix = _prepare(source, "--json-keys", "text", "title")
    assert _texts(prefix) == [b"a"] and _texts(prefix, "title") == [b"b"]


def test_plain_text_is_one_document(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("one\n\ntwo\n")
    _, prefix = _prepare(tmp_path / "in.txt")
    assert _texts(prefix) == [b"one\n\ntwo\n"]


def test_mark_of_byte_order_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_bytes(b"\xef\xbb\xbfone")
    assert _texts(_prepare(tmp_path / "in.txt")[1]) == [b"one"]
    (tmp_path / "in.json").write_bytes(b'\xef\xbb\xbf{"text": "two"}\r\n')
    assert _texts(_prepare(tmp_path / "in.json")[1]) == [b"two"]


def test_blank_lines_are_passed_over_and_counted(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('\n{"text": "a"}\n  \n{"text": "b"}\n\n')
    said, prefix = _prepare(tmp_path / "in.jsonl")
    assert _texts(prefix) == [b"a", b"b"]
    assert said[-1].startswith("Prepared 2 documents with 2 tokens")
    assert said[-1].endswith("; 3 blank lines were passed over")


def test_progress_is_told_at_intervals(tmp_path: Path) -> None:
    source = _jsonl(tmp_path, *({"text": "x"} for _ in range(5)))
    said, _ = _prepare(source, "--log-interval", "2")
    assert [line.split(" (")[0] for line in said[:-1]] == [
        "Processed 2 documents", "Processed 4 documents",
    ]  # fmt: skip
    assert "docs/s" in said[0] and "MB/s" in said[0]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.jsonl", b'{"text": "a"}\n{"text": ', r"in\.jsonl:2: is no JSON"),
        ("in.jsonl", b'\n{"title": "a"}', r"in\.jsonl:2: has no key 'text'; its keys are title"),
        ("in.jsonl", b'{"text": 5}', r"in\.jsonl:1: the value of 'text' is no text but 5"),
        ("in.jsonl", b"[1]", r"in\.jsonl:1: is no JSON object but list"),
        ("in.jsonl", b'{"text": "a"}\n{"text": "\xff"}', r"in\.jsonl:2: is no UTF-8"),
        ("in.txt", b"a\nb\n\xff", r"in\.txt:3: is no UTF-8 .* at byte 4"),
        ("in.jsonl", b'{"text": ' + b"9" * 5000 + b"}", r"in\.jsonl:1: is no JSON .*Exceeds"),
        ("in.jsonl", b"[" * 100_000, r"in\.jsonl:1: is no JSON .*recursion"),
        ("in.txt", b"", r"in\.txt: has no documents"),
        ("in.jsonl", b"", r"in\.jsonl: has no documents"),
        ("in.csv", b"a", r"in\.csv: documents are read from \.jsonl"),
    ],
)
def test_unusable_input_is_told_with_its_place(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(MegalithError, match=message):
        _prepare(tmp_path / name)
    assert list((tmp_path / "out").glob("*")) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--tokenizer-type", "GPT2BPETokenizer"], "--vocab-file is missing"),
        (["--vocab-file", "v"], "--merge-file is missing"),
        (["--json-keys", "text", "text"], "--json-keys text text: names a field twice"),
        (["--workers", "0"], "--workers 0 must be above 0"),
    ],
)
def test_unusable_settings_are_told(words: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(MegalithError, match=message):
        _prepare(_jsonl(tmp_path, {"text": "a"}), *words)


def test_missing_input_and_unusable_output_are_told(tmp_path: Path) -> None:
    with pytest.raises(MegalithError, match=r"--input .*none\.jsonl: there is no such file"):
        _prepare(tmp_path / "none.jsonl")
    (tmp_path / "out").write_text("")
    with pytest.raises(MegalithError, match=r"corpus_text_document: cannot be written: .*out"):
        _prepare(_jsonl(tmp_path, {"text": "a"}))


def test_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the end of the disk."""
    source = _jsonl(tmp_path, *({"text": "word " * 40_000} for _ in range(5)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, hard))
    try:
        with pytest.raises(
            MegalithError, match=r"corpus_text_document: cannot be written: .*large"
        ):
            _prepare(source)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "out").glob("*")) == []


def _start(folder: Path) -> tuple["subprocess.Popen[str]", list[int]]:
    """A preparation that has begun, in a process group of its own, and its workers' numbers."""
    source = _jsonl(folder, *({"text": "word " * 40_000} for _ in range(60)))
    command = [sys.executable, "-m", "megalith", "data", "prepare", "--input", str(source)]
    command += ["--output-prefix", str(folder / "out" / "corpus"), "--workers", "2"]
    process = subprocess.Popen(
        [*command, "--log-interval", "1"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None and process.stdout.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [pid for pid in map(int, children) if _is_worker(pid)]
    assert len(workers) == 2
    return process, workers


def _is_worker(pid: int) -> bool:
    try:
        return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


def _is_deaf_to_interrupts(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    blocked = int(status.partition("SigBlk:")[2].split()[0], 16)
    return bool(blocked >> (signal.SIGINT - 1) & 1)


def test_killed_worker_ends_the_preparation(tmp_path: Path) -> None:
    process, workers = _start(tmp_path)
    os.kill(workers[0], signal.SIGKILL)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert "a tokenising process died" in errors and "Traceback" not in errors
    assert list((tmp_path / "out").glob("*")) == []


def test_interrupt_from_the_keyboard_ends_all_without_noise(tmp_path: Path) -> None:
    process, workers = _start(tmp_path)
    assert all(map(_is_deaf_to_interrupts, workers))
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and errors == "megalith: stopped from the keyboard\n"
    assert not any(map(_is_worker, workers))
    assert list((tmp_path / "out").glob("*")) == []


def test_workers_do_not_outlive_a_killed_preparation(tmp_path: Path) -> None:
    process, workers = _start(tmp_path)
    process.kill()
    process.communicate(timeout=60)
    waited = time.monotonic()
    while any(map(_is_worker, workers)) and time.monotonic() - waited < 30:
        time.sleep(0.05)
    assert not any(map(_is_worker, workers))
    assert not list((tmp_path / "out").glob("*.idx"))

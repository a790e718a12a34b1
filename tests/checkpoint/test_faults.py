"""Damage is found and named, failure is told by all ranks alike, and nothing good is lost."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from megalith.checkpoint import save as saving
from megalith.checkpoint.load import find_checkpoint, load_tensors
from megalith.checkpoint.manifest import read_manifest, sealed
from megalith.checkpoint.save import save_checkpoint
from megalith.comm.mesh import Mesh
from megalith.errors import MegalithError
from tests.checkpoint.tensors import ALONE, assert_filled, empty, filled
from tests.pool import WorkerPool

ROOT = Path(__file__).parents[2]
SHARD = "rank_00000.safetensors"


def _saved(root: Path, step: int = 1) -> Path:
    return save_checkpoint(str(root), step, filled(ALONE, False, step), {}, {}, ALONE)


def _load(folder: Path) -> None:
    load_tensors(folder, empty(ALONE, False), ALONE)


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = _saved(tmp_path) / SHARD
    good = path.read_bytes()
    for place in [*range(0, len(good), 61), len(good) - 1]:
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(MegalithError, match=f"{SHARD}: is damaged: .*checksum"):
            _load(path.parent)


def test_every_changed_byte_of_the_manifest_is_found(tmp_path: Path) -> None:
    path = _saved(tmp_path) / "manifest.json"
    good = path.read_bytes()
    for place in [*range(0, len(good), 17), *range(len(good) - 30, len(good))]:
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        with pytest.raises(MegalithError, match=r"manifest\.json: (is|has format)"):
            _load(path.parent)
    path.write_bytes(good + b" ")
    with pytest.raises(MegalithError, match=r"does not match its checksum.*--ckpt-step"):
        _load(path.parent)


def test_missing_and_truncated_shards_are_named(tmp_path: Path) -> None:
    path = _saved(tmp_path) / SHARD
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(MegalithError, match=rf"{SHARD}: is damaged: it has [\d,]+ bytes, not"):
        _load(path.parent)
    path.unlink()
    with pytest.raises(MegalithError, match=rf"{SHARD}: a part of the checkpoint cannot be read"):
        _load(path.parent)


def _changed(*keys: str, to: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        inner = manifest
        for key in keys[:-1]:
            inner = inner[key]
        inner[keys[-1]] = to

    return change


def _first_box(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(manifest: dict[str, Any]) -> None:
        manifest["tensors"]["whole"]["rectangles"][0][name] = value

    return change


def _leave_the_folder(manifest: dict[str, Any]) -> None:
    manifest["files"]["../secret"] = manifest["files"].pop(SHARD)


def _lose_a_box(manifest: dict[str, Any]) -> None:
    manifest["tensors"]["whole"]["rectangles"] = []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_changed("format", to="other"), "is no manifest of a Megalith checkpoint"),
        (_changed("format_version", to=2), "has format version 2.*reads version 1"),
        (_changed("iteration", to="x"), "is damaged"),
        (_changed("tensors", "whole", "shape", to=[6, 1 << 70]), "are no sizes"),
        (_changed("tensors", "whole", "shape", to=[-6, 4]), "are no sizes"),
        (_changed("tensors", "whole", "shape", to=[6, 8]), "has shape"),
        (_changed("tensors", "whole", "dtype", to="float32"), "is float32 in the checkpoint"),
        (_changed("files", SHARD, "checksums", to=[]), "has 0 checksums"),
        (_changed("files", SHARD, "block_bytes", to=0), "checksums"),
        (_changed("files", SHARD, "bytes", to=3), "checksums for 3 bytes"),
        (_changed("iteration", to=-1), "are no sizes"),
        (_first_box("offset", [6, 0]), "leaves its tensor"),
        (_first_box("offset", [0]), "is damaged"),
        (_first_box("file", "/etc/passwd"), "is not listed"),
        (_first_box("key", "other"), "has no entry 'other'"),
        (_first_box("key", "rows#0"), "has shape"),
        (_leave_the_folder, "leaves the folder"),
        (_lose_a_box, "holds only 0 of the 24 elements of whole"),
    ],
)
def test_hostile_manifest_is_refused(
    change: Callable[[dict[str, Any]], None], message: str, tmp_path: Path
) -> None:
    path = _saved(tmp_path) / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["checksum"]
    change(manifest)
    path.write_text(sealed(json.dumps(manifest, indent=1)))
    with pytest.raises(MegalithError, match=message):
        _load(path.parent)


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "\x00", "null", "[" * 100_000, "\udcff"])
def test_damaged_manifest_is_refused(text: str, tmp_path: Path) -> None:
    path = _saved(tmp_path) / "manifest.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(MegalithError, match=r"manifest\.json: is (damaged|no manifest)"):
        read_manifest(path.parent)


def test_missing_tensor_says_that_the_model_differs(tmp_path: Path) -> None:
    tensors = filled(ALONE, False)
    del tensors["rows"]
    folder = save_checkpoint(str(tmp_path), 1, tensors, {}, {}, ALONE)
    with pytest.raises(MegalithError, match="has no tensor rows: it is of another model"):
        _load(folder)


def test_pickles_of_others_are_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "release" / "mp_rank_00").mkdir(parents=True)
    (tmp_path / "release" / "mp_rank_00" / "model_optim_rng.pt").write_bytes(b"\x80")
    with pytest.raises(MegalithError, match="those are pickles"):
        find_checkpoint(str(tmp_path))
    (tmp_path / saving.TRACKER).write_text("release")
    with pytest.raises(MegalithError, match=r"'release'.*those are pickles"):
        find_checkpoint(str(tmp_path))


def test_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MegalithError, match=r"--save .*file/inside: rank 0 cannot write"):
        _saved(tmp_path / "file" / "inside")


def _load_where_rank_1_has_no_file(mesh: Mesh, folder: str, empty_folder: str) -> str:
    """The error that this rank sees, when rank 1 looks where nothing is."""
    try:
        load_tensors(Path(empty_folder if mesh.rank else folder), empty(mesh, False), mesh)
    except MegalithError as error:
        return str(error)
    return "nothing"


def test_what_one_rank_cannot_read_is_told_by_all(pool2: WorkerPool, tmp_path: Path) -> None:
    folder = str(_saved(tmp_path))
    nothing = tmp_path / "nothing"
    first, second = pool2.run(_load_where_rank_1_has_no_file, folder, str(nothing))
    assert first == second
    assert f"{nothing}/manifest.json: cannot be read" in first and "(met by rank 1)" in first


def test_complete_folder_that_a_crash_kept_from_its_name_counts(tmp_path: Path) -> None:
    """As a crash leaves it between taking the old one's name away and giving it to the new one."""
    _saved(tmp_path, 1)
    second = _saved(tmp_path, 2)
    hidden = saving.hidden_folder(tmp_path, second.name)
    os.replace(second, hidden)
    (tmp_path / ".removing-iter_0000002").mkdir()
    (tmp_path / ".saving-probe-0").write_text("")
    assert find_checkpoint(str(tmp_path)) == hidden
    _load(hidden)
    _saved(tmp_path, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "iter_0000001", "iter_0000002", "iter_0000003", saving.TRACKER,
    ]  # fmt: skip


def _disk_full_on_rank_1(mesh: Mesh, root: str) -> str:
    """The error that this rank sees, when rank 1 finds no room."""
    plain = saving.write_shard

    def full(*arguments: Any) -> Any:
        if mesh.rank == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return plain(*arguments)

    saving.write_shard = full
    try:
        save_checkpoint(root, 2, filled(mesh, False, 2), {}, {}, mesh)
    except MegalithError as error:
        return str(error)
    finally:
        saving.write_shard = plain
    return "nothing"


def _save_at(mesh: Mesh, root: str, step: int) -> None:
    save_checkpoint(root, step, filled(mesh, False, step), {}, {}, mesh)


def test_full_disk_of_one_rank_is_told_by_all_and_loses_nothing(
    pool2: WorkerPool, tmp_path: Path
) -> None:
    root = str(tmp_path)
    pool2.run(_save_at, root, 1)
    first, second = pool2.run(_disk_full_on_rank_1, root)
    assert first == second
    assert "rank 1 cannot write the checkpoint" in first and "No space left" in first
    tensors = empty(ALONE, False)
    load_tensors(find_checkpoint(root), tensors, ALONE)
    assert_filled(tensors, ALONE, False, 1)
    pool2.run(_save_at, root, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "iter_0000001", "iter_0000003", saving.TRACKER,
    ]  # fmt: skip


SAVE_FOREVER = """
import itertools, sys
from megalith.checkpoint.save import save_checkpoint
from tests.checkpoint.tensors import ALONE, filled
for step in itertools.count(1):
    save_checkpoint(sys.argv[1], step, filled(ALONE, False, step), {}, {}, ALONE, 10)
    print(step, flush=True)
"""


def test_killed_while_saving_the_last_checkpoint_still_loads(tmp_path: Path) -> None:
    """One process saves all the time and is killed at random moments, again and again."""
    wait = random.Random(5)
    for _ in range(6):
        command = [sys.executable, "-c", SAVE_FOREVER, str(tmp_path)]
        process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        time.sleep(wait.uniform(0.0, 0.03))
        process.send_signal(signal.SIGKILL)
        finished = [int(line) for line in process.communicate()[0].splitlines()]
        folder = find_checkpoint(str(tmp_path))
        step = read_manifest(folder).iteration
        assert not finished or step in (finished[-1], finished[-1] + 1)
        tensors = empty(ALONE, False)
        load_tensors(folder, tensors, ALONE)
        assert_filled(tensors, ALONE, False, step)

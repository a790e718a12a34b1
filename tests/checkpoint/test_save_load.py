"""What is saved comes back, exactly, also where it is cut otherwise."""

import json
from pathlib import Path

import pytest
import torch

from megalith.checkpoint.load import find_checkpoint, has_checkpoint, load_tensors
from megalith.checkpoint.manifest import read_manifest
from megalith.checkpoint.save import save_checkpoint
from megalith.comm.mesh import Mesh, ParallelLayout
from megalith.errors import MegalithError
from megalith.nn.shard import ShardedTensor, ShardPart, ShardSpec
from tests.checkpoint.tensors import ALONE, SPECS, assert_filled, empty, filled
from tests.pool import WorkerPool


def _save(mesh: Mesh, root: str, cut: bool = False, step: int = 1) -> str:
    tensors = filled(mesh, cut, step)
    return str(save_checkpoint(root, step, tensors, {"a": [1]}, {"b": None}, mesh))


def _load(mesh: Mesh, folder: str, cut: bool = False, step: int = 1) -> None:
    tensors = empty(mesh, cut)
    load_tensors(Path(folder), tensors, mesh)
    assert_filled(tensors, mesh, cut, step)


def _at_tp2(mesh: Mesh, work: str, folder: str) -> str | None:
    """The pool's two ranks as one replica cut in two."""
    cut = Mesh.create(ParallelLayout(tp=2), mesh.device)
    return _save(cut, folder, cut=True) if work == "save" else _load(cut, folder, cut=True)


def test_one_rank_saves_and_loads(tmp_path: Path) -> None:
    folder = Path(_save(ALONE, str(tmp_path)))
    assert folder == tmp_path / "iter_0000001" == find_checkpoint(str(tmp_path))
    _load(ALONE, str(folder))
    manifest = read_manifest(folder)
    assert (manifest.iteration, manifest.state, manifest.config) == (1, {"a": [1]}, {"b": None})
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text() == "1"


@pytest.mark.parametrize("saved", ["1", "dp2", "dp4", "tp2"])
@pytest.mark.parametrize("loaded", ["1", "dp2", "tp2"])
def test_any_layout_loads_any_other(
    saved: str, loaded: str, pool2: WorkerPool, pool4: WorkerPool, tmp_path: Path
) -> None:
    root = str(tmp_path)
    if saved == "1":
        _save(ALONE, root)
    elif saved == "tp2":
        pool2.run(_at_tp2, "save", root)
    else:
        (pool2 if saved == "dp2" else pool4).run(_save, root)
    folder = str(find_checkpoint(root))
    if loaded == "1":
        _load(ALONE, folder)
    elif loaded == "tp2":
        pool2.run(_at_tp2, "load", folder)
    else:
        pool2.run(_load, folder)


def test_replicas_share_the_writing(pool4: WorkerPool, tmp_path: Path) -> None:
    folder = Path(pool4.run(_save, str(tmp_path))[0])
    manifest = read_manifest(folder)
    assert len(manifest.contents.files) == 4
    assert {name: len(tensor.rectangles) for name, tensor in manifest.tensors.items()} == (
        dict.fromkeys(SPECS, 1) | {"two parts": 2}
    )
    assert sorted(path.suffix for path in folder.iterdir()) == [".json"] + [".safetensors"] * 4


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64]
)
def test_every_dtype_comes_back_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    values = (torch.arange(24).reshape(6, 4) * 37 % 101).to(dtype)
    spec = ShardSpec.whole(6, 4)
    save_checkpoint(str(tmp_path), 3, {"x": ShardedTensor(values, spec)}, {}, {}, ALONE)
    back = torch.zeros_like(values)
    load_tensors(tmp_path / "iter_0000003", {"x": ShardedTensor(back, spec)}, ALONE)
    assert torch.equal(back, values)


def test_views_of_one_buffer_are_saved_apart(tmp_path: Path) -> None:
    flat = torch.arange(20.0)
    spec = ShardSpec.whole(2, 5)
    views = {
        name: ShardedTensor(flat[i : i + 10].view(2, 5), spec) for name, i in (("a", 0), ("b", 10))
    }
    save_checkpoint(str(tmp_path), 1, views, {}, {}, ALONE)
    back = torch.zeros(20)
    target = {
        name: ShardedTensor(back[i : i + 10].view(2, 5), spec) for name, i in (("b", 10), ("a", 0))
    }
    load_tensors(tmp_path / "iter_0000001", target, ALONE)
    assert torch.equal(back, flat)


def test_vocabulary_padding_is_neither_saved_nor_needed(tmp_path: Path) -> None:
    def padded(rows: int, value: float) -> ShardedTensor:
        return ShardedTensor(torch.full((rows, 3), value), ShardSpec((5, 3), (ShardPart(rows),)))

    save_checkpoint(str(tmp_path), 1, {"x": padded(8, 2.0)}, {}, {}, ALONE)
    other = padded(6, 0.0)
    load_tensors(tmp_path / "iter_0000001", {"x": other}, ALONE)
    assert other.tensor[:5].eq(2.0).all() and other.tensor[5:].eq(0.0).all()


def test_same_iteration_is_replaced_and_older_ones_pruned(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 5):
        tensors = filled(ALONE, False, step)
        save_checkpoint(str(tmp_path), step, tensors, {}, {}, ALONE, retain_interval=2)
    there = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert there == ["iter_0000002", "iter_0000004", "iter_0000005"]
    save_checkpoint(str(tmp_path), 5, filled(ALONE, False, 9), {}, {}, ALONE)
    _load(ALONE, str(tmp_path / "iter_0000005"), step=9)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == there


def test_a_step_and_a_folder_can_be_named(tmp_path: Path) -> None:
    assert not has_checkpoint(str(tmp_path))
    for step in (1, 2):
        _save(ALONE, str(tmp_path), step=step)
    assert has_checkpoint(str(tmp_path))
    assert find_checkpoint(str(tmp_path)).name == "iter_0000002"
    assert find_checkpoint(str(tmp_path), 1).name == "iter_0000001"
    assert find_checkpoint(str(tmp_path / "iter_0000001")).name == "iter_0000001"
    with pytest.raises(MegalithError, match=r"no complete checkpoint iter_0000007.*there.*: 1, 2"):
        find_checkpoint(str(tmp_path), 7)


def test_documented_reader_of_the_format_works(tmp_path: Path, pool2: WorkerPool) -> None:
    """The code in the page about the format, which uses none of ours, restores every tensor."""
    page = Path(__file__).parents[2] / "docs" / "checkpoint-format.md"
    code = page.read_text().split("```python\n")[1].split("```")[0]
    folder = pool2.run(_at_tp2, "save", str(tmp_path))[0]
    scope: dict[str, object] = {}
    exec(code, scope)
    read = scope["read_checkpoint"]
    assert callable(read)
    tensors = read(folder)
    expected = filled(ALONE, False, 1)
    assert tensors.keys() == expected.keys()
    for name, tensor in tensors.items():
        assert torch.equal(tensor, expected[name].tensor), name
    assert len([line for line in code.splitlines() if line.strip()]) <= 30
    json.loads((Path(folder) / "manifest.json").read_text())

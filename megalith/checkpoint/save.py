"""Writing a checkpoint: complete under its name, or not there.

All ranks write into a hidden folder; the main rank adds the manifest and publishes the folder by
renaming it. What a crash leaves behind is the hidden folder, which the next save removes.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from megalith import __version__
from megalith.checkpoint.manifest import (
    MANIFEST_NAME,
    Contents,
    StoredFile,
    StoredRectangle,
    StoredTensor,
    manifest_text,
)
from megalith.checkpoint.storage import to_disk, write_shard, write_text
from megalith.comm.collectives import broadcast_text, first_rank_with
from megalith.comm.mesh import Mesh
from megalith.errors import MegalithError
from megalith.nn.shard import Rectangle, ShardedTensor

TRACKER = "latest_checkpointed_iteration.txt"
_HIDDEN = ".saving-"


def folder_name(iteration: int) -> str:
    """`iter_0000100`, as Megatron-LM names it."""
    return f"iter_{iteration:07d}"


def save_checkpoint(
    root: str,
    iteration: int,
    tensors: Mapping[str, ShardedTensor],
    state: Mapping[str, Any],
    config: Mapping[str, Any],
    mesh: Mesh,
    retain_interval: int | None = None,
) -> Path:
    """Writes a checkpoint; every rank calls it. Returns its folder.

    Replicas share the writing: each rectangle is written once. `state` and `config` must be JSON.
    Older checkpoints whose iteration is no multiple of `retain_interval` are deleted afterwards.

    Raises:
        MegalithError: on all ranks, if any cannot write. Earlier checkpoints are untouched.
    """
    parent = Path(root)
    hidden = parent / f"{_HIDDEN}{folder_name(iteration)}"
    final = parent / folder_name(iteration)

    def publish() -> None:
        if mesh.is_main:
            contents = _merged(hidden, mesh.world_size)
            layout = mesh.layout.sizes
            text = manifest_text(iteration, config, state, layout, contents, __version__)
            write_text(hidden / MANIFEST_NAME, text)
            _publish(hidden, final)
            write_text(parent / TRACKER, str(iteration))
            _prune(parent, iteration, retain_interval)

    _together(mesh, parent, lambda: _make_room(parent, hidden) if mesh.is_main else None)
    _together(mesh, parent, lambda: _write_own(hidden, tensors, mesh))
    _together(mesh, parent, publish)
    return final


def require_writable(root: str, mesh: Mesh) -> None:
    """Finds out before training whether every rank can save; makes the folder if need be.

    Raises MegalithError on all ranks, if any cannot write.
    """
    parent = Path(root)

    def probe() -> None:
        parent.mkdir(parents=True, exist_ok=True)
        file = parent / f"{_HIDDEN}probe-{mesh.rank}"
        file.write_bytes(b"")
        file.unlink()

    _together(mesh, parent, probe)


def _together(mesh: Mesh, folder: Path, work: Callable[[], None]) -> None:
    """Does a part of the work; if it fails on any rank, all raise the first one's error."""
    problem = None
    try:
        work()
    except OSError as error:
        problem = str(error)
    rank = first_rank_with(mesh, problem is not None)
    if rank is not None:
        why = broadcast_text(mesh, problem or "", rank)
        raise MegalithError(
            f"--save {folder}: rank {rank} cannot write the checkpoint: {why}. Earlier checkpoints "
            f"are untouched. Make room, or name a folder that all ranks can write to."
        )


def _make_room(parent: Path, hidden: Path) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(f"{_HIDDEN}*"):
        shutil.rmtree(leftover)
    hidden.mkdir()


def _write_own(hidden: Path, tensors: Mapping[str, ShardedTensor], mesh: Mesh) -> None:
    """This rank's shard file, and a small one that lists what it holds."""
    file = f"rank_{mesh.rank:05d}.safetensors"
    shard: dict[str, torch.Tensor] = {}
    stored: dict[str, StoredTensor] = {}
    for name, boxes in _owned(tensors, mesh).items():
        tensor = tensors[name]
        entries = []
        for number, box in enumerate(boxes):
            key = f"{name}#{number}"
            shard[key] = box.of(tensor.tensor.detach())
            entries.append(StoredRectangle(box.global_offset, box.shape, file, key))
        dtype = str(tensor.tensor.dtype).removeprefix("torch.")
        stored[name] = StoredTensor(tensor.spec.global_shape, dtype, tuple(entries))
    files = {file: write_shard(hidden / file, shard)} if shard else {}
    write_text(hidden / _part_name(mesh.rank), json.dumps(Contents(stored, files).to_json()))


def _part_name(rank: int) -> str:
    return f"rank_{rank:05d}.json"


def _owned(tensors: Mapping[str, ShardedTensor], mesh: Mesh) -> dict[str, list[Rectangle]]:
    """The rectangles that this rank writes.

    Ranks of one pipeline stage hold the same tensors and go through them in the same order, each
    box to the holder with the fewest bytes so far, so that all come to the same division.
    """
    stage = mesh.layout.peers(mesh.rank, "dp", "cp", "tp")
    loads = Counter(dict.fromkeys(stage, 0))
    owned: dict[str, list[Rectangle]] = {}
    for name in sorted(tensors):
        for box, holders in _holders(tensors[name], stage, mesh):
            owner = min(holders, key=lambda rank: (loads[rank], rank))
            loads[owner] += tensors[name].tensor.element_size() * torch.Size(box.shape).numel()
            if owner == mesh.rank:
                owned.setdefault(name, []).append(box)
    return owned


def _holders(
    tensor: ShardedTensor, stage: list[int], mesh: Mesh
) -> Iterator[tuple[Rectangle, list[int]]]:
    """Each box of a tensor, as it lies on its holders, with the ranks that hold it."""
    found: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[Rectangle, list[int]]] = {}
    for rank in stage:
        for box in tensor.spec.rectangles(mesh.layout.coordinate(rank)):
            place = (box.global_offset, box.shape)
            _, holders = found.setdefault(place, (box, []))
            holders.append(rank)
            if rank == mesh.rank:
                found[place] = (box, holders)
    return iter(found.values())


def _merged(hidden: Path, ranks: int) -> Contents:
    """What all ranks wrote, from their lists, which are removed."""
    tensors: dict[str, StoredTensor] = {}
    files: dict[str, StoredFile] = {}
    for rank in range(ranks):
        path = hidden / _part_name(rank)
        part = Contents.from_json(json.loads(path.read_text(encoding="utf-8")))
        files |= part.files
        for name, tensor in part.tensors.items():
            before = tensors[name].rectangles if name in tensors else ()
            boxes = (*before, *tensor.rectangles)
            tensors[name] = StoredTensor(tensor.shape, tensor.dtype, boxes)
        path.unlink()
    return Contents(tensors, files)


def _publish(hidden: Path, final: Path) -> None:
    """Gives the folder its name; one of that name before it (from before a resume) gives way."""
    to_disk(hidden)
    if final.exists():
        shutil.rmtree(hidden.with_name(f"{_HIDDEN}old"), ignore_errors=True)
        os.replace(final, hidden.with_name(f"{_HIDDEN}old"))
    os.replace(hidden, final)
    to_disk(final.parent)
    shutil.rmtree(hidden.with_name(f"{_HIDDEN}old"), ignore_errors=True)


def _prune(parent: Path, newest: int, retain_interval: int | None) -> None:
    if retain_interval is None:
        return
    for folder in parent.glob("iter_*"):
        number = folder.name.removeprefix("iter_")
        if number.isdigit() and int(number) < newest and int(number) % retain_interval:
            shutil.rmtree(folder)

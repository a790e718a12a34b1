"""Writing a checkpoint: complete under its name, or not there.

All ranks write into a hidden folder; the main rank adds the manifest, with which the folder is
complete, and publishes it by renaming it. What a crash leaves behind are hidden folders: the next
save publishes a complete one that a crash kept from its name, and removes all others.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
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
from megalith.checkpoint.together import together
from megalith.comm.mesh import Mesh
from megalith.nn.shard import Rectangle, ShardedTensor

TRACKER = "latest_checkpointed_iteration.txt"
_HIDDEN, _DOOMED = ".saving-", ".removing-"


def folder_name(iteration: int) -> str:
    """`iter_0000100`, as Megatron-LM names it."""
    return f"iter_{iteration:07d}"


def hidden_folder(parent: Path, name: str) -> Path:
    """Where the checkpoint folder `name` lies until it is complete."""
    return parent / f"{_HIDDEN}{name}"


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
    final = parent / folder_name(iteration)
    hidden = hidden_folder(parent, final.name)

    def publish() -> None:
        if mesh.is_main:
            contents = _merged(hidden, mesh.world_size)
            layout = mesh.layout.sizes
            text = manifest_text(iteration, config, state, layout, contents, __version__)
            write_text(hidden / MANIFEST_NAME, text)
            _publish(hidden, final)
            write_text(parent / TRACKER, str(iteration))
            _prune(parent, iteration, retain_interval)

    told = partial(_cannot_write, parent)
    together(mesh, lambda: _make_room(parent, hidden) if mesh.is_main else None, told)
    together(mesh, lambda: _write_own(hidden, tensors, mesh), told)
    together(mesh, publish, told)
    return final


def require_writable(root: str, mesh: Mesh) -> None:
    """Finds out before training whether every rank can save; makes the folder if need be.

    Raises MegalithError on all ranks, if any cannot write.
    """
    parent = Path(root)

    def probe() -> None:
        parent.mkdir(parents=True, exist_ok=True)
        file = hidden_folder(parent, f"probe-{mesh.rank}")
        file.write_bytes(b"")
        file.unlink()

    together(mesh, probe, partial(_cannot_write, parent))


def _cannot_write(folder: Path, rank: int, why: str) -> str:
    return (
        f"--save {folder}: rank {rank} cannot write the checkpoint: {why}. Earlier checkpoints "
        f"are untouched. Make room, or name a folder that all ranks can write to."
    )


def _make_room(parent: Path, hidden: Path) -> None:
    parent.mkdir(parents=True, exist_ok=True)
    for leftover in parent.glob(f"{_HIDDEN}*"):
        final = parent / leftover.name.removeprefix(_HIDDEN)
        if (leftover / MANIFEST_NAME).exists() and not final.exists():
            os.replace(leftover, final)
        elif leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    for leftover in parent.glob(f"{_DOOMED}*"):
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
    before = _doomed(final) if final.exists() else None
    os.replace(hidden, final)
    to_disk(final.parent)
    if before is not None:
        shutil.rmtree(before)


def _doomed(folder: Path) -> Path:
    """Takes a checkpoint away from its name in one step, so that it is never half there."""
    aside = folder.with_name(f"{_DOOMED}{folder.name}")
    os.replace(folder, aside)
    return aside


def _prune(parent: Path, newest: int, retain_interval: int | None) -> None:
    if retain_interval is None:
        return
    for folder in parent.glob("iter_*"):
        number = folder.name.removeprefix("iter_")
        if number.isdecimal() and int(number) < newest and int(number) % retain_interval:
            shutil.rmtree(_doomed(folder))

"""Reading a checkpoint into tensors that may be cut otherwise than when it was saved."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from megalith.checkpoint.manifest import (
    MANIFEST_NAME,
    Manifest,
    StoredRectangle,
    StoredTensor,
    read_manifest,
)
from megalith.checkpoint.save import TRACKER, folder_name, hidden_folder
from megalith.checkpoint.storage import ShardReader
from megalith.checkpoint.together import together
from megalith.comm.mesh import Mesh
from megalith.errors import MegalithError
from megalith.nn.shard import Rectangle, ShardedTensor


def has_checkpoint(root: str) -> bool:
    """Whether a folder holds a checkpoint, or claims to."""
    return (Path(root) / TRACKER).exists() or bool(_complete(Path(root)))


def find_checkpoint(root: str, step: int | None = None) -> Path:
    """The folder of a step's checkpoint, by default of the latest one.

    `root` may also be the folder of one checkpoint itself. Raises MegalithError where there is
    none.
    """
    folder = Path(root)
    if not folder.is_dir():
        raise MegalithError(f"--load {root}: there is no such folder, so nothing can be loaded")
    if step is None and (folder / MANIFEST_NAME).exists():
        return folder
    found = _complete(folder)
    if step is None:
        step = _latest(folder, found)
    if step in found:
        return folder / folder_name(step)
    replacing = hidden_folder(folder, folder_name(step))
    if (replacing / MANIFEST_NAME).exists():  # a crash kept it from its name, else it is complete
        return replacing
    there = ", ".join(map(str, found)) or "none"
    raise MegalithError(
        f"--load {root}: has no complete checkpoint {folder_name(step)}. Steps that are there for "
        f"--ckpt-step: {there}.{_foreign(folder / folder_name(step))}"
    )


def load_tensors(
    folder: Path, tensors: Mapping[str, ShardedTensor], mesh: Mesh, convert: bool = False
) -> None:
    """Fills the tensors with this rank's parts of the checkpoint's; reads nothing else.

    Every rank calls it.

    Raises:
        MegalithError: on all ranks, if any finds a tensor that is not there, or of another shape,
            or of another dtype unless `convert`, or missing or damaged files.
    """
    together(mesh, lambda: _load(folder, tensors, mesh, convert), _cannot_read)


def _cannot_read(rank: int, why: str) -> str:
    return why if rank == 0 else f"{why} (met by rank {rank})"


def _load(folder: Path, tensors: Mapping[str, ShardedTensor], mesh: Mesh, convert: bool) -> None:
    manifest = read_manifest(folder)
    for name, tensor in tensors.items():
        _check(manifest, name, tensor, convert)
    readers: dict[str, ShardReader] = {}
    for name, tensor in tensors.items():
        stored = manifest.tensors[name]
        for box in tensor.spec.rectangles(mesh.coordinates):
            _fill(box, tensor.tensor, name, stored, manifest, readers)


def _complete(root: Path) -> list[int]:
    """Steps of the complete checkpoints in a folder, rising."""
    numbers = (
        path.parent.name.removeprefix("iter_") for path in root.glob(f"iter_*/{MANIFEST_NAME}")
    )
    return sorted(int(number) for number in numbers if number.isdecimal())


def _latest(root: Path, found: list[int]) -> int:
    tracker = root / TRACKER
    if tracker.exists():
        text = tracker.read_text(errors="replace").strip()
        if text.isdecimal() and len(text) < 19:
            return int(text)
        raise MegalithError(
            f"{tracker}: says {text!r:.40}, which is no iteration.{_foreign(root / 'release')}"
        )
    if found:
        return found[-1]
    raise MegalithError(
        f"--load {root}: the folder has no checkpoint (no {TRACKER}), so nothing can be loaded. "
        f"Name the folder that --save was given."
        f"{_foreign(root)}"
    )


def _foreign(folder: Path) -> str:
    """A remark on checkpoints of other programs."""
    patterns = ("**/*.pt", "**/*.distcp", "**/*.pth", "**/common.pt")
    if not any(any(folder.glob(pattern)) for pattern in patterns):
        return ""
    return (
        " There are checkpoints of Megatron-LM or plain PyTorch: those are pickles, which can run "
        "code when they are opened, so Megalith does not load them."
    )


def _check(manifest: Manifest, name: str, tensor: ShardedTensor, convert: bool) -> None:
    stored = manifest.tensors.get(name)
    if stored is None:
        raise MegalithError(
            f"the checkpoint {manifest.folder} has no tensor {name}: it is of another model. "
            f"--use-checkpoint-args takes the model's settings from the checkpoint."
        )
    if stored.shape != tensor.spec.global_shape:
        raise MegalithError(
            f"{name} has shape {list(stored.shape)} in the checkpoint {manifest.folder} and "
            f"{list(tensor.spec.global_shape)} in this run: the model's settings differ. "
            f"--use-checkpoint-args takes them from the checkpoint."
        )
    if stored.dtype != str(tensor.tensor.dtype).removeprefix("torch.") and not convert:
        raise MegalithError(
            f"{name} is {stored.dtype} in the checkpoint {manifest.folder} and "
            f"{tensor.tensor.dtype} in this run. Give the precision that it was trained in "
            f"(--bf16, --fp16 or --params-dtype), or --no-load-optim or --finetune to convert the "
            f"weights."
        )


def _fill(
    box: Rectangle,
    local: torch.Tensor,
    name: str,
    stored: StoredTensor,
    manifest: Manifest,
    readers: dict[str, ShardReader],
) -> None:
    """Copies the overlaps of the stored rectangles with one that this rank holds."""
    target, filled = box.of(local.detach()), 0
    for source in stored.rectangles:
        overlap = _overlap(source, box)
        if overlap is None:
            continue
        if source.file not in readers:
            file = manifest.contents.files[source.file]
            readers[source.file] = ShardReader(manifest.folder, source.file, file)
        low, high = overlap
        values = readers[source.file].read(source, _within(source.offset, low, high), stored.dtype)
        target[_within(box.global_offset, low, high)].copy_(values)
        filled += values.numel()
    if filled != target.numel():
        raise MegalithError(
            f"the checkpoint {manifest.folder} holds only {filled} of the {target.numel()} "
            f"elements of {name} that this rank needs: its manifest is damaged; use another one"
        )


def _overlap(
    source: StoredRectangle, box: Rectangle
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Lowest and highest global corner that both boxes share, if they share any element."""
    corners = list(_corners(source, box))
    if any(low >= high for low, high in corners):
        return None
    return tuple(low for low, _ in corners), tuple(high for _, high in corners)


def _corners(source: StoredRectangle, box: Rectangle) -> Iterator[tuple[int, int]]:
    for a, m, b, n in zip(source.offset, source.shape, box.global_offset, box.shape, strict=True):
        yield max(a, b), min(a + m, b + n)


def _within(
    offset: tuple[int, ...], low: tuple[int, ...], high: tuple[int, ...]
) -> tuple[slice, ...]:
    """A global box in the coordinates of one that begins at `offset`."""
    return tuple(
        slice(start - first, stop - first)
        for first, start, stop in zip(offset, low, high, strict=True)
    )

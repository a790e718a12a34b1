"""Exchanges between ranks. A group of None holds this rank alone: then nothing is sent."""

from collections.abc import Sequence

import torch
import torch.distributed as dist

from megalith.comm.mesh import Mesh


def all_reduce_sum(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Sums over the group, in place."""
    if group is not None:
        dist.all_reduce(tensor, dist.ReduceOp.SUM, group)
    return tensor


def all_reduce_max(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Takes the largest over the group, in place."""
    if group is not None:
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group)
    return tensor


def agree(mesh: Mesh, flags: Sequence[bool]) -> list[bool]:
    """Whether each flag is set on any rank; one exchange for all flags."""
    if mesh.world is None:
        return list(flags)
    raised = torch.tensor(flags, dtype=torch.int32, device=mesh.device)
    return [bool(flag) for flag in all_reduce_max(raised, mesh.world).tolist()]


def first_rank_with(mesh: Mesh, flag: bool) -> int | None:
    """The lowest rank whose flag is set; the same answer everywhere."""
    from_the_end = mesh.world_size - mesh.rank if flag else 0
    highest = torch.tensor([from_the_end], dtype=torch.int32, device=mesh.device)
    found = int(all_reduce_max(highest, mesh.world).item())
    return mesh.world_size - found if found else None


def broadcast_text(mesh: Mesh, text: str, rank: int) -> str:
    """The text that `rank` gave; what other ranks give is not looked at."""
    if mesh.world is None:
        return text
    content = torch.tensor(list(text.encode()), dtype=torch.uint8, device=mesh.device)
    length = torch.tensor([len(content)], dtype=torch.int64, device=mesh.device)
    dist.broadcast(length, rank, mesh.world)
    if mesh.rank != rank:
        content = content.new_empty(int(length.item()))
    dist.broadcast(content, rank, mesh.world)
    return bytes(content.tolist()).decode()

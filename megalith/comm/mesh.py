"""Who talks to whom: the ranks of a run as a grid, and the process groups along its axes."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from math import prod

import torch
import torch.distributed as dist

AXES = ("pp", "dp", "cp", "tp")
"""Mesh axes, slowest first: tp varies fastest from rank to rank."""


@dataclass(frozen=True)
class ParallelLayout:
    """How many ranks lie along each axis of the mesh."""

    pp: int = 1
    dp: int = 1
    cp: int = 1
    tp: int = 1

    @property
    def world_size(self) -> int:
        return prod(self.sizes.values())

    @property
    def sizes(self) -> dict[str, int]:
        return {axis: getattr(self, axis) for axis in AXES}

    def coordinate(self, rank: int) -> dict[str, int]:
        """The position of a rank on each axis."""
        position = {}
        for axis in reversed(AXES):
            rank, position[axis] = divmod(rank, self.sizes[axis])
        return position

    def rank(self, coordinate: Mapping[str, int]) -> int:
        """The rank at a position; the inverse of `coordinate`."""
        rank = 0
        for axis in AXES:
            rank = rank * self.sizes[axis] + coordinate[axis]
        return rank

    def peers(self, rank: int, *axes: str) -> list[int]:
        """The ranks that differ from `rank` on the given axes only, itself included, in order."""
        here = self.coordinate(rank)
        places = product(*(range(self.sizes[axis]) for axis in axes))
        return sorted(
            self.rank({**here, **dict(zip(axes, place, strict=True))}) for place in places
        )


class Mesh:
    """A rank's view of the grid: its place, its device and the groups it belongs to."""

    def __init__(
        self,
        layout: ParallelLayout,
        rank: int,
        device: torch.device,
        groups: Mapping[tuple[str, ...], dist.ProcessGroup],
    ) -> None:
        self.layout = layout
        self.rank = rank
        self.device = device
        self._groups = groups

    @staticmethod
    def create(layout: ParallelLayout, device: torch.device) -> "Mesh":
        """Builds the groups of this rank, in an initialised world or in a single process."""
        if not dist.is_initialized():
            assert layout.world_size == 1, "several ranks need an initialised process group"
            return Mesh(layout, 0, device, {})
        assert layout.world_size == dist.get_world_size(), (layout, dist.get_world_size())
        rank = dist.get_rank()
        groups = {}
        for axes in [*((axis,) for axis in AXES), ("dp", "cp")]:
            members = layout.peers(rank, *axes)
            if len(members) > 1:
                groups[axes] = _group(members)
        return Mesh(layout, rank, device, groups)

    @property
    def world_size(self) -> int:
        return self.layout.world_size

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that speaks for all."""
        return self.rank == 0

    @property
    def coordinates(self) -> dict[str, int]:
        return self.layout.coordinate(self.rank)

    def size(self, *axes: str) -> int:
        """The number of ranks along the axes taken together."""
        return prod(self.layout.sizes[axis] for axis in axes)

    def coordinate(self, axis: str) -> int:
        return self.coordinates[axis]

    def group(self, *axes: str) -> dist.ProcessGroup | None:
        """The group along the axes; None when it would hold this rank alone."""
        return self._groups.get(axes)

    @property
    def world(self) -> dist.ProcessGroup | None:
        """The group of all ranks; None in a run of one."""
        return dist.group.WORLD if self.world_size > 1 else None


def _group(members: list[int]) -> dist.ProcessGroup:
    if len(members) == dist.get_world_size():
        group = dist.group.WORLD
        assert group is not None
        return group
    new: dist.ProcessGroup = dist.new_group(members, use_local_synchronization=True)
    return new

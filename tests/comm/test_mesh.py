"""The grid of ranks."""

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from megalith.comm.mesh import AXES, Mesh, ParallelLayout
from tests.pool import WorkerPool

sizes = st.integers(1, 5)
layouts = st.builds(ParallelLayout, sizes, sizes, sizes, sizes)


@given(layouts)
def test_rank_and_coordinate_are_inverse(layout: ParallelLayout) -> None:
    ranks = [layout.rank(layout.coordinate(rank)) for rank in range(layout.world_size)]
    assert ranks == list(range(layout.world_size))


@given(layouts, st.sampled_from(AXES))
def test_peers_partition_the_world(layout: ParallelLayout, axis: str) -> None:
    groups = {tuple(layout.peers(rank, axis)) for rank in range(layout.world_size)}
    assert sorted(rank for group in groups for rank in group) == list(range(layout.world_size))
    assert {len(group) for group in groups} == {layout.sizes[axis]}


def test_tensor_ranks_are_neighbours_and_stages_lie_far_apart() -> None:
    layout = ParallelLayout(pp=2, dp=2, cp=2, tp=2)
    assert layout.peers(5, "tp") == [4, 5]
    assert layout.peers(5, "cp") == [5, 7]
    assert layout.peers(5, "dp") == [1, 5]
    assert layout.peers(5, "pp") == [5, 13]
    assert layout.peers(5, "dp", "cp") == [1, 3, 5, 7]


def sum_of_ranks(mesh: Mesh, layout: ParallelLayout) -> dict[str, float]:
    """What an all-reduce of the ranks' numbers gives along each axis."""
    grid = Mesh.create(layout, torch.device("cpu"))
    sums = {}
    for axis in AXES:
        value = torch.tensor(float(mesh.rank))
        if grid.group(axis) is not None:
            dist.all_reduce(value, group=grid.group(axis))
        sums[axis] = value.item()
    return sums


@pytest.mark.parametrize(
    "layout",
    [ParallelLayout(pp=2, tp=2), ParallelLayout(dp=2, cp=2), ParallelLayout(dp=4)],
    ids=str,
)
def test_groups_join_the_peers(pool4: WorkerPool, layout: ParallelLayout) -> None:
    for rank, sums in enumerate(pool4.run(sum_of_ranks, layout)):
        assert sums == {axis: float(sum(layout.peers(rank, axis))) for axis in AXES}

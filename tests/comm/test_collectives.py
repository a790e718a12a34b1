"""Exchanges between ranks, and the same calls where a rank is alone."""

import torch

from megalith.comm.collectives import (
    agree,
    all_reduce_max,
    all_reduce_sum,
    broadcast_text,
    first_rank_with,
)
from megalith.comm.mesh import Mesh, ParallelLayout
from tests.pool import WorkerPool

ALONE = Mesh(ParallelLayout(), 0, torch.device("cpu"), {})


def reduced(mesh: Mesh) -> tuple[float, float]:
    mine = torch.tensor([float(mesh.rank + 1)])
    total = all_reduce_sum(mine.clone(), mesh.world)
    return total.item(), all_reduce_max(mine, mesh.world).item()


def agreed(mesh: Mesh, flags_by_rank: list[list[bool]]) -> list[bool]:
    return agree(mesh, flags_by_rank[mesh.rank])


def first(mesh: Mesh, flags: list[bool]) -> int | None:
    return first_rank_with(mesh, flags[mesh.rank])


def told(mesh: Mesh, speaker: int) -> list[str]:
    return [broadcast_text(mesh, text, speaker) for text in (f"naïve ☃ {mesh.rank}", "")]


def test_sum_and_maximum_come_to_all(pool2: WorkerPool) -> None:
    assert pool2.run(reduced) == [(3.0, 2.0)] * 2


def test_a_flag_on_one_rank_counts_for_all(pool2: WorkerPool) -> None:
    assert (
        pool2.run(agreed, [[False, True, False], [False, False, True]]) == [[False, True, True]] * 2
    )


def test_first_rank_with_a_flag_is_the_lowest(pool2: WorkerPool) -> None:
    assert pool2.run(first, [True, True]) == [0, 0]
    assert pool2.run(first, [False, True]) == [1, 1]
    assert pool2.run(first, [False, False]) == [None, None]


def test_text_of_one_rank_comes_to_all(pool2: WorkerPool) -> None:
    assert pool2.run(told, 1) == [["naïve ☃ 1", ""]] * 2


def test_alone_nothing_is_sent() -> None:
    assert reduced(ALONE) == (1.0, 1.0)
    assert agree(ALONE, [True, False]) == [True, False]
    assert first_rank_with(ALONE, True) == 0
    assert first_rank_with(ALONE, False) is None
    assert broadcast_text(ALONE, "here", 0) == "here"

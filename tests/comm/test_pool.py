"""The warm pool itself: results, failures, deaths and hangs."""

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from megalith.comm.mesh import Mesh
from megalith.errors import MegalithError
from tests.pool import WorkerError, WorkerPool, workers


def _sum_of_ranks(mesh: Mesh, scale: float) -> torch.Tensor:
    value = torch.tensor([scale * mesh.rank])
    dist.all_reduce(value, group=mesh.group("dp"))
    return value


def _fail_everywhere(mesh: Mesh) -> None:
    raise MegalithError(f"no luck on rank {mesh.rank}")


def _fail_on_rank_1(mesh: Mesh) -> None:
    if mesh.rank == 1:
        raise ValueError("only here")
    dist.barrier()


def _raise_what_cannot_be_sent(mesh: Mesh) -> None:
    class Local(Exception):
        pass

    raise Local("stuck at home")


def _die_on_rank_1(mesh: Mesh) -> None:
    if mesh.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def _hang_on_rank_1(mesh: Mesh) -> None:
    if mesh.rank == 1:
        time.sleep(100)


def _process(mesh: Mesh) -> int:
    return os.getpid()


def test_results_come_by_rank(pool4: WorkerPool) -> None:
    results = pool4.run(_sum_of_ranks, 2.0)
    assert [float(r) for r in results] == [12.0] * 4
    assert len(set(pool4.run(_process))) == 4


def test_failure_on_all_ranks_is_raised_and_processes_stay(pool2: WorkerPool) -> None:
    before = pool2.run(_process)
    with pytest.raises(MegalithError, match="no luck on rank"):
        pool2.run(_fail_everywhere)
    assert pool2.run(_process) == before


def test_failure_on_one_rank_is_raised_with_its_traceback() -> None:
    pool = workers(2)
    with pytest.raises(ValueError, match="only here") as caught:
        pool.run(_fail_on_rank_1)
    assert "rank 1 failed" in str(caught.value.__cause__)
    assert "in _fail_on_rank_1" in str(caught.value.__cause__)
    assert float(pool.run(_sum_of_ranks, 1.0)[0]) == 1.0
    with pytest.raises(WorkerError, match="exit code -9"):
        pool.run(_die_on_rank_1)
    with pytest.raises(WorkerError, match=r"(?s)ranks .1. are not done.*_hang_on_rank_1"):
        pool.run(_hang_on_rank_1, seconds=2)
    pool.close()


def test_unsendable_exception_arrives_as_text(pool2: WorkerPool) -> None:
    with pytest.raises(WorkerError, match="stuck at home"):
        pool2.run(_raise_what_cannot_be_sent)

"""Signals ask a run to stop; all ranks hear of it at the next step boundary."""

import os
import signal

import pytest
import torch

from megalith.comm.mesh import Mesh, ParallelLayout
from megalith.train.signals import StopSignals
from tests.comm.ranks import Ranks, wait_until
from tests.comm.scripts import endings

ALONE = Mesh(ParallelLayout(), 0, torch.device("cpu"), {})


@pytest.mark.parametrize(
    ("number", "name"), [(signal.SIGTERM, "SIGTERM"), (signal.SIGUSR1, "SIGUSR1")]
)
def test_signal_to_one_rank_stops_all_in_order(number: int, name: str) -> None:
    ranks = Ranks(endings.asked_to_stop, 2)
    wait_until(lambda: ranks.said("ready on 0") and ranks.said("ready on 1"))
    pid = ranks.processes[1].pid
    assert pid is not None
    os.kill(pid, number)
    assert ranks.wait() == ([0, 0], "")
    assert ranks.said(f"saved after {name} on 0")


def test_signal_is_remembered_until_asked() -> None:
    with StopSignals() as signals:
        assert signals.agreed(ALONE) is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert signals.agreed(ALONE) == "SIGUSR1"
        assert signals.flags == [False, True]


def test_former_handlers_come_back() -> None:
    came: list[int] = []
    former = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    try:
        with StopSignals():
            os.kill(os.getpid(), signal.SIGUSR1)
        assert came == []
        os.kill(os.getpid(), signal.SIGUSR1)
        assert came == [signal.SIGUSR1]
        with StopSignals(enabled=False) as signals:
            os.kill(os.getpid(), signal.SIGUSR1)
        assert len(came) == 2
        assert signals.agreed(ALONE) is None
    finally:
        signal.signal(signal.SIGUSR1, former)

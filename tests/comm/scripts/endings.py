"""Ways in which one rank of a run ends, while the others are somewhere else.

As a script: `endings.py NAME` runs one of them as the rank that the environment says; other
arguments are passed over, such as the --local-rank of torch.distributed.launch.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from megalith.comm.collectives import all_reduce_sum
from megalith.comm.guard import run_guarded
from megalith.comm.heartbeat import tell
from megalith.comm.launch import start
from megalith.comm.mesh import Mesh
from megalith.config.schema import ParallelConfig
from megalith.errors import MegalithError
from megalith.train.signals import StopSignals

VICTIM = 1
"""The rank that fails, where it is not said otherwise."""


def normal(mesh: Mesh) -> None:
    exchange(mesh)


def value_error(mesh: Mesh) -> None:
    if mesh.rank == VICTIM:
        raise ValueError("seven is no even number")
    exchange_forever(mesh)


def runtime_error_while_others_compute(mesh: Mesh) -> None:
    if mesh.rank == VICTIM:
        torch.ones(2) @ torch.ones(3)
    compute_forever()


def own_error(mesh: Mesh) -> None:
    if mesh.rank == VICTIM:
        raise MegalithError("corpus.bin is not there: write it anew")
    exchange_forever(mesh)


def same_error(mesh: Mesh) -> None:
    raise MegalithError("corpus.bin is not there: write it anew")


def keyboard(mesh: Mesh) -> None:
    raise KeyboardInterrupt


def status_3(mesh: Mesh) -> int:
    return 3


def killed_while_others_exchange(mesh: Mesh) -> None:
    exchange(mesh)
    if mesh.rank == VICTIM:
        kill_myself()
    exchange_forever(mesh)


def killed_while_others_compute(mesh: Mesh) -> None:
    exchange(mesh)
    if mesh.rank == VICTIM:
        kill_myself()
    compute_forever()


def rank_0_killed(mesh: Mesh) -> None:
    exchange(mesh)
    if mesh.rank == 0:
        kill_myself()
    exchange_forever(mesh)


def killed_when_others_are_done(mesh: Mesh) -> None:
    if mesh.rank == VICTIM:
        time.sleep(0.3)
        kill_myself()


def stopped_for_a_while(mesh: Mesh) -> None:
    """Longer than a live rank waits for news of a dead one; the caller wakes it up."""
    exchange(mesh)
    if mesh.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGSTOP)
    exchange(mesh)


def asked_to_stop(mesh: Mesh) -> None:
    """Says that it is ready, then goes on until a signal comes to any rank."""
    with StopSignals() as signals:
        say("ready")
        while not (name := signals.agreed(mesh)):
            time.sleep(0.02)
        if mesh.is_main:
            say(f"saved after {name}")


def terminated_unprepared(mesh: Mesh) -> None:
    say("ready")
    compute_forever()


def exchange(mesh: Mesh) -> None:
    all_reduce_sum(torch.ones(3), mesh.world)


def exchange_forever(mesh: Mesh) -> None:
    while True:
        exchange(mesh)


def compute_forever() -> None:
    while True:
        time.sleep(0.01)


def kill_myself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def say(text: str) -> None:
    """Creates a file that the test looks for."""
    folder = os.environ.get("SAY_IN")
    if folder:
        Path(folder, f"{text} on {os.environ['RANK']}").touch()


def tell_how_it_started(mesh: Mesh) -> None:
    denormal = torch.full((1_000_000,), 1e-40)
    facts = {
        "device": str(mesh.device),
        "dp": mesh.size("dp"),
        "threads": torch.get_num_threads(),
        "denormals": int((denormal * 1.0).count_nonzero()),
        "interface": os.environ.get("GLOO_SOCKET_IFNAME"),
        "backend": dist.get_backend() if dist.is_initialized() else None,
    }
    tell(json.dumps(facts))


def guarded(ending: Callable[[Mesh], int | None], parallel: ParallelConfig) -> int:
    """Runs an ending as a rank of the run that the environment describes."""

    def job() -> int:
        started = start(parallel)
        for notice in started.notices:
            tell(notice)
        return ending(started.mesh) or 0

    return run_guarded(job, parallel, debug="--debug" in sys.argv)


if __name__ == "__main__":
    name = next(word for word in sys.argv[1:] if not word.startswith("-"))
    sys.exit(guarded(globals()[name], ParallelConfig()))

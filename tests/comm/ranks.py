"""Ranks as processes of their own, forked from one that has torch, so that each starts fast."""

import multiprocessing
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from megalith.comm.mesh import Mesh
from megalith.config.schema import ParallelConfig
from tests.comm.scripts import endings

SECONDS = 60

Ending = Callable[[Mesh], int | None]

DEFAULT = ParallelConfig()


class Ranks:
    """A world of processes that run the same ending."""

    def __init__(
        self, ending: Ending, world_size: int, *flags: str, parallel: ParallelConfig = DEFAULT
    ) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self._world_size = world_size
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.comm.ranks"])
        shared = {
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(free_port()),
            "SAY_IN": str(self.folder),
        }
        self.processes: list[ForkServerProcess] = [
            context.Process(
                target=_rank,
                args=(ending, parallel, {**shared, "RANK": str(rank)}, self._errors(rank), flags),
                daemon=True,
            )
            for rank in range(world_size)
        ]
        for process in self.processes:
            process.start()

    def wait(self) -> tuple[list[int | None], str]:
        """Exit statuses by rank, minus the number of the signal that killed it, and what they said.

        Fails if a rank does not end.
        """
        for process in self.processes:
            process.join(SECONDS)
        statuses = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        errors = "".join(self._errors(rank).read_text() for rank in range(self._world_size))
        assert None not in statuses, f"ranks did not end: {statuses}\n{errors}"
        return statuses, errors

    def said(self, text: str) -> bool:
        """Whether an ending said a text; see `endings.say`."""
        return (self.folder / text).exists()

    def _errors(self, rank: int) -> Path:
        return self.folder / f"stderr-{rank}"


def wait_until(happened: Callable[[], bool]) -> None:
    """Waits while other processes go on; fails if it does not happen."""
    end = time.monotonic() + SECONDS
    while not happened():
        assert time.monotonic() < end, "this took too long"
        time.sleep(0.02)


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _rank(
    ending: Ending,
    parallel: ParallelConfig,
    environment: dict[str, str],
    errors: Path,
    flags: tuple[str, ...],
) -> None:
    os.dup2(os.open(errors, os.O_CREAT | os.O_WRONLY), 2)
    os.environ.update(environment)
    sys.argv = ["rank", *flags]
    sys.exit(endings.guarded(ending, parallel))

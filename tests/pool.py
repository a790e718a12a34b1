"""Warm worker processes for distributed tests, so that a test costs milliseconds.

A pool of `world_size` processes is joined by gloo. `pool.run(function, *args)` calls a module-level
`function(mesh, *args)` on each of them and returns the results by rank.
"""

import faulthandler
import importlib
import multiprocessing
import os
import pickle
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from megalith.comm.mesh import Mesh, ParallelLayout

SECONDS_TO_START = 120.0
SECONDS_PER_TASK = 60.0
SECONDS_AFTER_FAILURE = 1.0


class WorkerError(Exception):
    """A worker died, hung, or raised something that cannot be sent; the text says which and how."""


@dataclass(frozen=True)
class _Task:
    """A call: a module-level function by name, its arguments, and where modules are looked for."""

    module: str
    name: str
    arguments: tuple[Any, ...]
    path: tuple[str, ...]
    seconds: float

    def call(self, mesh: Mesh) -> Any:
        function = getattr(importlib.import_module(self.module), self.name)
        return function(mesh, *self.arguments)


@dataclass(frozen=True)
class _Answer:
    """A rank's result, or its exception (None if it cannot be sent) with the traceback's text."""

    result: Any = None
    exception: BaseException | None = None
    traceback: str = ""
    dead: bool = False


class WorkerPool:
    """Processes joined by gloo that run one task after another; started at the first task.

    A task that fails on some rank raises that rank's exception in the caller, with the rank's
    traceback as its cause. Ranks that a failure left waiting are replaced before the next task.
    """

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._processes: list[multiprocessing.process.BaseProcess] = []
        self._pipes: list[Connection] = []

    def run(
        self, function: Callable[..., Any], *args: Any, seconds: float = SECONDS_PER_TASK
    ) -> list[Any]:
        """Calls `function(mesh, *args)` on every rank; results by rank.

        Raises what a rank raised (the first in time), WorkerError for a rank that died or is not
        done after `seconds`.
        """
        assert "<locals>" not in function.__qualname__, "a worker finds module-level functions only"
        if not self._processes:
            self._start()
        task = _Task(function.__module__, function.__name__, args, tuple(sys.path), seconds)
        message = pickle.dumps((task.path, pickle.dumps(task)))
        for pipe in self._pipes:
            pipe.send_bytes(message)
        answers, failure = self._collect(time.monotonic() + seconds)
        if failure is not None:
            if not self._all_failed_alike(answers):
                self.close()
            raise failure
        return [answers[rank].result for rank in range(self.world_size)]

    def close(self) -> None:
        """Ends the processes; a later task starts new ones."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join()
        for pipe in self._pipes:
            pipe.close()
        if self._folder is not None:
            self._folder.cleanup()
        self._folder, self._processes, self._pipes = None, [], []

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        for rank in range(self.world_size):
            ours, theirs = context.Pipe()
            where = (rank, self.world_size, self._folder.name)
            process = context.Process(target=_serve, args=(theirs, *where), daemon=True)
            process.start()
            theirs.close()
            self._processes.append(process)
            self._pipes.append(ours)
        _, failure = self._collect(time.monotonic() + SECONDS_TO_START)
        if failure is not None:
            self.close()
            raise failure

    def _collect(self, deadline: float) -> tuple[dict[int, _Answer], BaseException | None]:
        """Answers by rank, and the first failure, after which the others get a moment to answer."""
        answers: dict[int, _Answer] = {}
        failure: BaseException | None = None
        while silent := [rank for rank in range(self.world_size) if rank not in answers]:
            ready = wait([self._pipes[rank] for rank in silent], deadline - time.monotonic())
            if not ready:
                late = WorkerError(f"ranks {silent} are not done in time.\n{self._stacks()}")
                return answers, failure or late
            for rank in [rank for rank in silent if self._pipes[rank] in ready]:
                answers[rank] = answer = self._receive(rank)
                if failure is None and answer.traceback:
                    failure = _failure(rank, answer)
                    deadline = min(deadline, time.monotonic() + SECONDS_AFTER_FAILURE)
        return answers, failure

    def _all_failed_alike(self, answers: dict[int, _Answer]) -> bool:
        """Whether no rank can be left inside a collective that others never entered."""
        failed = [answer for answer in answers.values() if answer.traceback and not answer.dead]
        return len(failed) == self.world_size

    def _receive(self, rank: int) -> _Answer:
        try:
            answer = pickle.loads(self._pipes[rank].recv_bytes())
        except (EOFError, ConnectionError):
            self._processes[rank].join()
            code = self._processes[rank].exitcode
            text = f"the process of rank {rank} died with exit code {code}"
            return _Answer(traceback=text, dead=True)
        assert isinstance(answer, _Answer)
        return answer

    def _stacks(self) -> str:
        """Where each rank is, as it wrote down itself shortly before the time limit."""
        assert self._folder is not None
        files = sorted(Path(self._folder.name).glob("stack-*"))
        return "\n".join(f"{file.name}:\n{file.read_text()}" for file in files)


def workers(world_size: int) -> WorkerPool:
    """A pool of `world_size` ranks; it starts with its first task and ends with `close`."""
    return WorkerPool(world_size)


def _failure(rank: int, answer: _Answer) -> BaseException:
    where = WorkerError(f"rank {rank} failed:\n{answer.traceback}")
    if answer.exception is None:
        return where
    answer.exception.__cause__ = where
    return answer.exception


def _serve(pipe: Connection, rank: int, world_size: int, folder: str) -> None:
    """The life of a worker: joins the world, then answers tasks until the pipe closes."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
    )
    mesh = Mesh.create(ParallelLayout(dp=world_size), torch.device("cpu"))
    pipe.send_bytes(pickle.dumps(_Answer()))
    with open(f"{folder}/stack-{rank}", "w") as stack:
        while True:
            try:
                path, task = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionError):
                return
            sys.path[:] = path
            pipe.send_bytes(_answer(task, mesh, stack.fileno()))


def _answer(pickled_task: bytes, mesh: Mesh, stack_file: int) -> bytes:
    """The pickled answer to a task; never raises, and leaves a stack if the task hangs."""
    try:
        task = pickle.loads(pickled_task)
        faulthandler.dump_traceback_later(0.9 * task.seconds, file=stack_file)
        torch.manual_seed(0)
        return pickle.dumps(_Answer(result=task.call(mesh)))
    except BaseException as error:
        text = traceback.format_exc()
        try:
            answer = pickle.dumps(_Answer(exception=error, traceback=text))
            pickle.loads(answer)
        except Exception:
            answer = pickle.dumps(_Answer(traceback=text))
        return answer
    finally:
        faulthandler.cancel_dump_traceback_later()

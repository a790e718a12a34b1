"""Processes that share a stream of work and keep its order.

Each has a pipe of its own, which ends when the process does. With queues that all share, as
`concurrent.futures` has them, a process killed in the middle of an answer leaves its reader waiting
for the rest for ever.
"""

import multiprocessing
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

_WAITING_ITEMS = 4
"""Items read ahead for each process: enough to keep it busy, few enough to bound memory."""


class WorkerDied(Exception):
    """A process ended without an answer: killed from outside, or out of memory."""


def map_in_processes(
    work: Callable[[Item], Result], items: Iterator[Item], workers: int
) -> Iterator[tuple[Item, Result]]:
    """Each item with `work` of it, in order; only few are held at a time.

    Raises WorkerDied, and whatever `work` raises.
    """
    processes = [_Worker(work) for _ in range(workers)]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for process in processes:
        idle.put(process)

    def ask(item: Item) -> Result:
        process = idle.get()
        try:
            result: Result = process.ask(item)
        finally:
            idle.put(process)
        return result

    waiting: deque[tuple[Item, Future[Result]]] = deque()
    with ThreadPoolExecutor(workers) as threads:
        try:
            for item in items:
                waiting.append((item, threads.submit(ask, item)))
                if len(waiting) > _WAITING_ITEMS * workers:
                    done, future = waiting.popleft()
                    yield done, future.result()
            while waiting:
                done, future = waiting.popleft()
                yield done, future.result()
        finally:
            for process in processes:
                process.kill()
            threads.shutdown(cancel_futures=True)


class _Worker:
    """A process that answers one item after another."""

    def __init__(self, work: Callable[[Any], Any]) -> None:
        self._pipe, its_end = multiprocessing.Pipe()
        self._process = _DeafProcess(target=_serve, args=(its_end, work), daemon=True)
        self._process.start()
        its_end.close()

    def ask(self, item: Any) -> Any:
        try:
            self._pipe.send(item)
            result, error = self._pipe.recv()
        except (EOFError, OSError) as gone:
            raise WorkerDied from gone
        if error is not None:
            raise error
        return result

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


class _DeafProcess(SpawnProcess):
    """A process deaf to Ctrl-C, which goes to the whole group; the parent alone answers it."""

    def start(self) -> None:
        """Blocked signals stay blocked in the new process, from its first moment on."""
        resource_tracker.ensure_running()  # which, if started only now, would unblock the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            super().start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Connection, work: Callable[[Any], Any]) -> None:
    """Answers until the parent is done or gone; then the pipe ends."""
    try:
        while True:
            item = pipe.recv()
            answer: tuple[Any, Exception | None]
            try:
                answer = work(item), None
            except Exception as error:
                error.add_note(traceback.format_exc())
                answer = None, error
            pipe.send(answer)
    except (EOFError, OSError):
        return

"""How a training process ends: well, or with one message and all other ranks too.

Imports no torch, so that a command that runs alone starts fast, and so that malloc is tuned first.
"""

import os
import signal
import traceback
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from megalith.comm.machine import tune_malloc
from megalith.comm.place import Place
from megalith.config.schema import ParallelConfig
from megalith.errors import MegalithError

if TYPE_CHECKING:
    from megalith.comm.heartbeat import Peer, Watch


def run_guarded(job: Callable[[], int], parallel: ParallelConfig, debug: bool = False) -> int:
    """Runs a job that may be one rank of several; returns its exit status.

    If any rank fails or dies, all end: with status 2 for a mistake of the user's, else 1, after
    one of them told why. A job that is alone raises what it raises. `debug` adds the traceback
    to the user's mistakes too. Raises MegalithError if the other ranks do not come.
    """
    place = Place.from_environment(os.environ)
    if parallel.cpu_malloc_tuning:
        tune_malloc(os.environ)
    if place.world_size == 1:
        return job()
    if not debug:  # when a rank dies, torch's C++ parts write pages of addresses as warnings
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from megalith.comm.heartbeat import Watch

    return _run_watched(job, Watch.join(place, os.environ), debug)


def _run_watched(job: Callable[[], int], watch: "Watch", debug: bool) -> int:
    signal.signal(signal.SIGTERM, _stop)
    try:
        status = job()
        watch.finish()
        _close_process_group()
    except BaseException as error:
        _fail(error, watch, debug)
    watch.leave()
    return status


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """torchrun sends SIGTERM to the survivors of a rank that died, before they could tell."""
    raise SystemExit(f"asked to stop by {signal.Signals(number).name}")


def _close_process_group() -> None:
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _fail(error: BaseException, watch: "Watch", debug: bool) -> NoReturn:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # the end has begun, and must not be cut short
    if isinstance(error, (RuntimeError, SystemExit)):
        watch.await_news()  # a collective fails so, and torchrun stops us, when another rank died
    status = 2 if isinstance(error, MegalithError) else 1
    watch.end_all(status, _message(error, watch.me, debug))


def _message(error: BaseException, me: "Peer", debug: bool) -> str:
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, MegalithError):
        text = f"error on {me}: {error}"
        return f"{text}\n{trace}" if debug else text
    if isinstance(error, KeyboardInterrupt):
        return f"{me} was stopped from the keyboard"
    if isinstance(error, SystemExit):
        return f"{me} ended: {error}"
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{place.name} ({place.filename}:{place.lineno})"
    return f"{me} failed in {where}: {type(error).__name__}: {error}\n{trace}"

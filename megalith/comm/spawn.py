"""Starts the ranks of a run through torchrun, and passes signals on to those on this host."""

import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import RendezvousError
from torch.distributed.run import main as torchrun

from megalith.comm.heartbeat import tell
from megalith.errors import MegalithError

SEVERAL_HOSTS = ("--nnodes", "--node", "--rdzv", "--master", "--standalone", "--local-addr")

SAVE_AND_STOP = (signal.SIGTERM, signal.SIGUSR1)


def spawn(options: Sequence[str], command: Sequence[str]) -> int:
    """Runs a Python command line in the processes that torchrun's options ask for.

    Returns 0 if they all did, else the largest status of a rank. What went wrong is told by the
    rank that failed, or here if none lived to tell. Raises MegalithError if none could start.
    """
    logging.disable(logging.ERROR)  # torchrun's report of a failure says less than the rank's
    try:
        torchrun([*_on_this_host(options), *_forwarding(), *options, *command])
    except ChildFailedError as error:
        return _status(error)
    except SignalException as error:
        return 128 + error.sigval
    except (RuntimeError, ValueError, RendezvousError) as error:
        raise MegalithError(
            f"torchrun could not start the ranks with {' '.join(options)!r}: {error}. See "
            f"`torchrun --help` for what these options mean."
        ) from error
    return 0


def _on_this_host(options: Sequence[str]) -> list[str]:
    """What torchrun needs for a single host: a free port, and no look-up of the host's name."""
    if any(word.replace("_", "-").startswith(SEVERAL_HOSTS) for word in options):
        return []
    return ["--standalone", "--local-addr", "localhost"]


def _forwarding() -> list[str]:
    """Takes the signals that ask for a save from torchrun, which would kill the ranks 30 s later.

    Returns torchrun's options for that. Where processes cannot be looked up nothing changes.
    """
    if not Path("/proc/self/task").exists():
        return []
    for number in SAVE_AND_STOP:
        signal.signal(number, _forward)
    return ["--signals-to-handle", "SIGINT,SIGHUP,SIGQUIT"]


def _forward(number: int, frame: FrameType | None) -> None:
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            os.kill(int(child), number)


def _status(error: ChildFailedError) -> int:
    statuses = [failure.exitcode for failure in error.failures.values()]
    if max(statuses) < 0:
        rank, failure = error.get_first_failure()
        tell(
            f"rank {rank} (pid {failure.pid}) was ended by {failure.signal_name()} before it could "
            f"say why: killed from outside or out of memory (see the kernel's log, dmesg)."
        )
    return max(1, *statuses)

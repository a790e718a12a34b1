"""What this host gives a rank: allocator and cores. Imports no torch."""

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

MALLOC_VARIABLES = ("GLIBC_TUNABLES", "MALLOC_MMAP_MAX_", "MALLOC_TRIM_THRESHOLD_")
"""Set by a user, any of these means that he tunes malloc himself (mallopt(3))."""

_M_TRIM_THRESHOLD = -1  # malloc.h
_M_MMAP_MAX = -4  # malloc.h


def tune_malloc(environment: Mapping[str, str]) -> bool:
    """Makes glibc keep freed memory for the next step; whether it did.

    By default a large buffer is mapped when allocated and unmapped when freed, so that each step
    faults all its pages in anew. Kept in the heap, they are reused. The price: the process never
    shrinks below its largest size so far, fragmentation included. Does nothing where malloc is
    not glibc's or the environment tunes it already.
    """
    if not sys.platform.startswith("linux") or any(
        name in environment for name in MALLOC_VARIABLES
    ):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    kept = library.mallopt(_M_TRIM_THRESHOLD, -1) and library.mallopt(_M_MMAP_MAX, 0)
    return bool(kept)


def threads_per_rank(local_world_size: int, environment: Mapping[str, str]) -> int:
    """CPU threads of a rank: OMP_NUM_THREADS if the user set it, else its share of the cores."""
    asked = environment.get("OMP_NUM_THREADS", "")
    if asked.isdecimal() and int(asked) > 0 and not _set_by_launcher(environment):
        return int(asked)
    return max(1, len(_cores()) // local_world_size)


def _set_by_launcher(environment: Mapping[str, str]) -> bool:
    """Whether OMP_NUM_THREADS=1 comes from torchrun, which sets it for several ranks on a host.

    The launcher is the parent process, and /proc shows the environment that it began with.
    """
    if "TORCHELASTIC_RUN_ID" not in environment or environment["OMP_NUM_THREADS"] != "1":
        return False
    began_with = Path(f"/proc/{os.getppid()}/environ")
    return not (began_with.exists() and b"OMP_NUM_THREADS=" in began_with.read_bytes())


def _cores() -> set[str]:
    """The physical cores that this process may use: two hyperthreads of one count once."""
    if not hasattr(os, "sched_getaffinity"):
        return {str(number) for number in range(os.cpu_count() or 1)}
    return {_core(number) for number in os.sched_getaffinity(0)}


def _core(cpu: int) -> str:
    siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return siblings.read_text() if siblings.exists() else str(cpu)

"""What a rank takes of its host: memory that is kept, and its share of the cores."""

import os
import subprocess
import sys

import pytest

from megalith.comm.machine import threads_per_rank, tune_malloc

FAULTS = """
import ctypes, resource, sys
from megalith.comm.guard import run_guarded
from megalith.config.schema import ParallelConfig

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
libc.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]

def job():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        buffer = libc.malloc(64 << 20)
        libc.memset(buffer, 1, 64 << 20)
        libc.free(buffer)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return 0

run_guarded(job, ParallelConfig(cpu_malloc_tuning=sys.argv[1] == "on"))
assert "torch" not in sys.modules
"""

THREADS = """
import os
from megalith.comm.machine import threads_per_rank
print(threads_per_rank(1, os.environ))
"""

AS_TORCHRUN_DOES = """
import os, subprocess, sys
environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHELASTIC_RUN_ID": "none"}
subprocess.run([sys.executable, "-c", sys.argv[1]], env=environment, check=True)
"""

ONE_CORE = "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="glibc and /proc are of Linux")


def output(script: str, *arguments: str, **environment: str) -> int:
    """What a script prints when it runs alone, without malloc or thread settings but these."""
    ours = ("WORLD_SIZE", "OMP_NUM_THREADS", "GLIBC_TUNABLES")
    inherited = {name: value for name, value in os.environ.items() if name not in ours}
    return int(
        subprocess.check_output(
            [sys.executable, "-c", script, *arguments], env={**inherited, **environment}
        )
    )


@linux_only
def test_freed_memory_is_kept_for_the_next_step() -> None:
    assert 10 * output(FAULTS, "on") < output(FAULTS, "off")


@linux_only
def test_malloc_settings_of_the_user_win() -> None:
    assert not tune_malloc({"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1000"})
    assert 2 * output(FAULTS, "on", MALLOC_TRIM_THRESHOLD_="131072") > output(FAULTS, "off")


def test_threads_are_what_the_user_says() -> None:
    assert threads_per_rank(2, {"OMP_NUM_THREADS": "3"}) == 3
    assert threads_per_rank(2, {"OMP_NUM_THREADS": "0"}) == threads_per_rank(2, {})


def test_ranks_share_the_cores_and_each_has_one() -> None:
    alone = threads_per_rank(1, {})
    assert 1 <= alone <= (os.cpu_count() or 1)
    assert threads_per_rank(2, {}) == max(1, alone // 2)
    assert threads_per_rank(10_000, {}) == 1


@linux_only
def test_cores_that_the_process_may_not_use_do_not_count() -> None:
    assert output(ONE_CORE + "\n" + THREADS) == 1


@linux_only
def test_one_thread_is_obeyed_only_if_the_user_asked_for_it() -> None:
    assert output(AS_TORCHRUN_DOES, THREADS) == threads_per_rank(1, {})
    assert output(AS_TORCHRUN_DOES, THREADS, OMP_NUM_THREADS="1") == 1

"""Whatever becomes of one rank: all end, and one message says which rank, where and why."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from megalith.comm.guard import run_guarded
from megalith.comm.heartbeat import SECONDS_FOR_NEWS
from megalith.config.schema import ParallelConfig
from megalith.errors import MegalithError
from tests.comm.ranks import SECONDS, Ending, Ranks, free_port, wait_until
from tests.comm.scripts import endings

REPOSITORY = Path(__file__).parents[2]


def messages(errors: str) -> list[str]:
    """What was told to the user: lines that begin with our name."""
    return [line for line in errors.splitlines() if line.startswith("megalith: ")]


def the_message(errors: str) -> str:
    told = messages(errors)
    assert len(told) == 1, errors
    return told[0]


def test_normal_end_returns_0_and_is_silent() -> None:
    assert Ranks(endings.normal, 2).wait() == ([0, 0], "")


def test_status_of_the_job_is_returned() -> None:
    assert Ranks(endings.status_3, 2).wait() == ([3, 3], "")


def test_error_on_one_rank_ends_others_that_wait_in_a_collective() -> None:
    statuses, errors = Ranks(endings.value_error, 2).wait()
    assert statuses == [1, 1]
    pattern = r"rank 1 \(pid \d+ on \S+\) failed in value_error \(.*endings.py:\d+\): ValueError: "
    assert re.search(pattern + "seven is no even number", the_message(errors))
    assert errors.count("Traceback") == 1


def test_torch_error_on_one_rank_ends_others_that_compute() -> None:
    statuses, errors = Ranks(endings.runtime_error_while_others_compute, 2).wait()
    assert statuses == [1, 1]
    assert re.search(r"rank 1 .* failed in .*: RuntimeError: inconsistent", the_message(errors))
    assert errors.count("Traceback") == 1


@pytest.mark.parametrize("ending", [endings.own_error, endings.same_error])
def test_mistake_of_the_user_is_told_once_without_traceback(ending: Ending) -> None:
    statuses, errors = Ranks(ending, 2).wait()
    assert statuses == [2, 2]
    assert re.search(r"error on rank \d \(.*\): corpus.bin is not there", the_message(errors))
    assert len(errors.splitlines()) == 1


def test_debug_adds_the_traceback_to_a_mistake_of_the_user() -> None:
    _, errors = Ranks(endings.own_error, 2, "--debug").wait()
    assert "corpus.bin is not there" in the_message(errors)
    assert errors.count("Traceback") == 1


def test_interrupt_from_the_keyboard_is_told_once() -> None:
    statuses, errors = Ranks(endings.keyboard, 2).wait()
    assert statuses == [1, 1]
    assert "was stopped from the keyboard" in the_message(errors)
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("ending", "victim", "world_size"),
    [
        (endings.killed_while_others_exchange, 1, 3),
        (endings.killed_while_others_compute, 1, 2),
        (endings.killed_when_others_are_done, 1, 2),
        (endings.rank_0_killed, 0, 3),
    ],
)
def test_killed_rank_ends_all(ending: Ending, victim: int, world_size: int) -> None:
    ranks = Ranks(ending, world_size)
    pid = ranks.processes[victim].pid
    statuses, errors = ranks.wait()
    assert statuses.pop(victim) == -signal.SIGKILL
    assert set(statuses) == {1}
    assert re.search(rf"rank {victim} \(pid {pid} on \S+\) died .* checkpoint", the_message(errors))
    assert "Traceback" not in errors


def test_stopped_rank_is_not_taken_for_dead() -> None:
    ranks = Ranks(endings.stopped_for_a_while, 2)
    pid = ranks.processes[endings.VICTIM].pid
    assert pid is not None
    wait_until(lambda: is_stopped(pid))
    time.sleep(SECONDS_FOR_NEWS + 0.5)
    os.kill(pid, signal.SIGCONT)
    assert ranks.wait() == ([0, 0], "")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T"


def test_sigterm_before_the_run_can_save_ends_all_with_one_message() -> None:
    ranks = Ranks(endings.terminated_unprepared, 2)
    wait_until(lambda: ranks.said("ready on 0") and ranks.said("ready on 1"))
    pid = ranks.processes[0].pid
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    statuses, errors = ranks.wait()
    assert statuses == [1, 1]
    assert re.search(r"rank 0 \(.*\) ended: asked to stop by SIGTERM", the_message(errors))


def test_under_torch_distributed_launch_the_message_is_told_once() -> None:
    launcher = ["-m", "torch.distributed.launch", "--nproc_per_node", "2"]
    launcher += ["--master_addr", "localhost", "--master_port", str(free_port())]
    ended = subprocess.run(
        [sys.executable, *launcher, endings.__file__, "value_error"],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=2 * SECONDS,
        check=False,
    )
    assert ended.returncode != 0
    assert "ValueError: seven is no even number" in the_message(ended.stderr)


def test_job_that_is_alone_raises_what_it_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    parallel = ParallelConfig(cpu_malloc_tuning=False)

    def fail() -> int:
        raise MegalithError("alone")

    with pytest.raises(MegalithError, match="alone"):
        run_guarded(fail, parallel)
    assert run_guarded(lambda: 3, parallel) == 3

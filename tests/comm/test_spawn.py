"""`megalith launch`: statuses, messages and signals between torchrun and the ranks."""

import multiprocessing
import os
import signal
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from megalith.cli import main
from megalith.comm.spawn import spawn
from megalith.errors import MegalithError
from tests.comm.ranks import SECONDS, wait_until

UNTIL_ASKED = """
trap 'sleep 0.2; touch saved-$RANK; exit 0' TERM USR1
touch ready-$RANK
for _ in $(seq 1000); do sleep 0.05; done
"""


class Launch:
    """`spawn` in a process of its own, with shells as ranks."""

    def __init__(self, folder: Path, script: str, ranks: int = 2) -> None:
        self._folder = folder
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tests.comm.ranks", "megalith.comm.spawn"])
        self.process: ForkServerProcess = context.Process(
            target=_launch, args=(str(folder), script, ranks)
        )
        self.process.start()

    def wait(self) -> tuple[int | None, str]:
        """The exit status, and what was written to stderr."""
        self.process.join(SECONDS)
        status = self.process.exitcode
        self.process.kill()
        return status, (self._folder / "stderr").read_text()


def _launch(folder: str, script: str, ranks: int) -> None:
    os.chdir(folder)
    os.dup2(os.open("stderr", os.O_CREAT | os.O_WRONLY), 2)
    options = ["--nproc-per-node", str(ranks), "--no-python"]
    sys.exit(spawn(options, ["sh", "-c", script]))


def test_all_ranks_well_is_status_0(tmp_path: Path) -> None:
    assert Launch(tmp_path, "test $LOCAL_WORLD_SIZE = 2").wait() == (0, "")


def test_failed_rank_gives_its_status_and_nothing_is_added_to_its_message(tmp_path: Path) -> None:
    script = "test $RANK = 0 && sleep 60; echo why >&2; exit 2"
    assert Launch(tmp_path, script).wait() == (2, "why\n")


def test_killed_rank_that_nobody_told_of_is_told_here(tmp_path: Path) -> None:
    script = "test $RANK = 0 && sleep 60; kill -9 $$$$"  # torchrun takes $$ for one $
    status, errors = Launch(tmp_path, script).wait()
    assert status == 1
    assert "megalith: rank 1 (pid " in errors
    assert "was ended by SIGKILL before it could say why" in errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_signal_reaches_ranks_which_take_their_time(number: int, tmp_path: Path) -> None:
    launch = Launch(tmp_path, UNTIL_ASKED)
    wait_until(lambda: all((tmp_path / f"ready-{rank}").exists() for rank in range(2)))
    assert launch.process.pid is not None
    os.kill(launch.process.pid, number)
    assert launch.wait() == (0, "")
    assert all((tmp_path / f"saved-{rank}").exists() for rank in range(2))


def test_interrupt_ends_ranks_and_tells_nothing(tmp_path: Path) -> None:
    launch = Launch(
        tmp_path, "trap 'exit 1' INT; touch ready; for _ in $(seq 1000); do sleep 0.05; done", 1
    )
    wait_until((tmp_path / "ready").exists)
    assert launch.process.pid is not None
    os.kill(launch.process.pid, signal.SIGINT)
    assert launch.wait() == (128 + signal.SIGINT, "")


def test_options_that_torchrun_does_not_understand_are_named() -> None:
    with pytest.raises(MegalithError, match=r"'--nproc-per-node many'.*torchrun --help"):
        spawn(["--nproc-per-node", "many"], ["true"])


def test_command_must_follow_the_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["launch", "--nproc-per-node", "2"]) == 2
    assert "say what to start" in capsys.readouterr().err


def test_name_of_the_program_may_stand_before_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []
    monkeypatch.setattr("megalith.comm.spawn.spawn", lambda *words: started.append(words) or 0)
    for words in ["pretrain gpt --swiglu", "megalith pretrain gpt --swiglu"]:
        assert main(["launch", "--nproc-per-node", "2", *words.split()]) == 0
    command = ["-m", "megalith", "pretrain", "gpt", "--swiglu"]
    assert started == 2 * [(["--nproc-per-node", "2"], command)]

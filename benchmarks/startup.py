"""How long one waits: `python -m benchmarks.startup --help`."""

import argparse
import json
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from benchmarks import page
from benchmarks.job import Contender, Job, Workload
from benchmarks.machine import ROOT, describe
from benchmarks.table import machine_words, markdown

RESULTS = Path(__file__).parent / "results" / "startup.json"

TOY = Workload(hidden=64, heads=4, dtype="fp32", layers=2, sequence=64, batch=4, vocabulary=256)

FIRST_STEP = re.compile(rb"iteration +1/")
"""Our log line of the first step."""


@dataclass(frozen=True)
class Wait:
    """A command, and what one waits for: output that matches `until`, else its end."""

    name: str
    words: tuple[str, ...]
    until: re.Pattern[bytes] | None = None


def waits() -> list[Wait]:
    """What is timed, ours beside what it cannot be faster than, and beside others."""
    megalith = str(Path(sys.executable).with_name("megalith"))
    settings = (
        f"--num-layers {TOY.layers} --hidden-size {TOY.hidden} --num-attention-heads {TOY.heads} "
        f"--seq-length {TOY.sequence} --micro-batch-size {TOY.batch} --mock-data --lr 1e-3 "
        "--train-iters 1 --log-interval 1 --eval-iters 0"
    )
    return [
        Wait("`python -c pass`", (sys.executable, "-c", "pass")),
        Wait("`megalith --help`", (megalith, "--help")),
        Wait("`megalith pretrain gpt --help`", (megalith, "pretrain", "gpt", "--help")),
        Wait('`python -c "import torch"`', (sys.executable, "-c", "import torch")),
        Wait(
            "`megalith pretrain gpt`, to the end of the first step",
            (megalith, "pretrain", "gpt", *settings.split()),
            FIRST_STEP,
        ),
        Wait("the minimal loop, one step", _one_step("minimal")),
        Wait("transformers' Trainer, one step", _one_step("trainer")),
    ]


def _one_step(trainer: str) -> tuple[str, ...]:
    job = Job(TOY, Contender(trainer), steps=1, processes=1, threads=2)
    return (
        sys.executable,
        "-m",
        "benchmarks.worker",
        job.to_json(),
        str(Path(tempfile.gettempdir(), "step")),
    )


def seconds_of(wait: Wait) -> float:
    """How long it took; raises CalledProcessError if the command failed."""
    start = perf_counter()
    took = None
    with subprocess.Popen(wait.words, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if took is None and wait.until is not None and wait.until.search(line):
                took = perf_counter() - start
    if wait.until is None:
        took = perf_counter() - start
    if process.returncode != 0 or took is None:
        raise subprocess.CalledProcessError(process.returncode, shlex.join(wait.words))
    return took


def main(argv: Sequence[str] | None = None) -> None:
    """Times all commands in turn, stores the times, and writes the page."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.startup", description="how long one waits for a command"
    )
    options.add_argument("--rounds", type=int, default=5, help="runs of each command")
    options.add_argument("--tiny", action="store_true", help="prints only")
    asked = options.parse_args(argv)
    found: dict[str, list[float]] = {}
    for _ in range(asked.rounds):
        for wait in waits():
            found.setdefault(wait.name, []).append(seconds_of(wait))
    result = {"date": date.today().isoformat(), "machine": describe(2), "seconds": found}
    print(table(result))
    if not asked.tiny:
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        page.update("startup", table(result))


def table(result: dict[str, Any]) -> str:
    """The times as a Markdown table."""
    rows = [
        [name, f"{median(seconds):.2f} s", f"{max(seconds):.2f} s"]
        for name, seconds in result["seconds"].items()
    ]
    words = f"{machine_words(result['machine'])}; {result['date']}."
    return f"{words}\n\n{markdown(['command', 'median', 'slowest'], rows)}"


if __name__ == "__main__":
    main()

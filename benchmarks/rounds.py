"""Runs jobs in turn, round after round, each in fresh processes: noise hits all alike."""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.contenders import OURS
from benchmarks.job import Job

ROOT = Path(__file__).resolve().parents[1]

Row = dict[str, Any]
"""What is known of a job: "job", "rounds" (one measurement each) and "failure" (text or None).

A measurement has "seconds" and "losses" of each step, "parameters", "start_seconds" before the
first step, and "peak_rss" in bytes, summed over the processes.
"""


def play(jobs: Sequence[Job], rounds: int) -> list[Row]:
    """The rows of the jobs, after `rounds` rounds A B C A B C."""
    rows: list[Row] = [
        {"job": dataclasses.asdict(job), "rounds": [], "failure": None} for job in jobs
    ]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for job, row in zip(jobs, rows, strict=True):
                if row["failure"] is None:
                    _measure(job, row, Path(folder))
                    _tell(number, job, row)
    _same_model(rows)
    return rows


def _measure(job: Job, row: Row, folder: Path) -> None:
    """Adds one measurement to a row, or its failure."""
    result = folder / "result"
    for old in folder.glob("result.*"):
        old.unlink()
    words = [*launcher(job), "-m", "benchmarks.worker", job.to_json(), str(result)]
    done = subprocess.run(
        words,
        env=environment(os.environ, folder / job.contender.name),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    if done.returncode != 0:
        print(done.stderr, file=sys.stderr)
        row["failure"] = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        if job.contender == OURS:
            raise SystemExit("Megalith itself failed, so there is nothing to compare with")
        return
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("result.*"))]
    row["rounds"].append(ranks[0] | {"peak_rss": sum(rank["peak_rss"] for rank in ranks)})


def launcher(job: Job) -> list[str]:
    """How Python is started for a job: as it is, or by torchrun."""
    if job.processes == 1:
        return [sys.executable]
    run = "-m torch.distributed.run --standalone --nproc-per-node"
    return [sys.executable, *run.split(), str(job.processes)]


def environment(given: Mapping[str, str], cache: Path) -> dict[str, str]:
    """Compiled code is kept in `cache` for later rounds; none is taken from earlier runs."""
    return {**given, "TORCHINDUCTOR_CACHE_DIR": str(cache), "HF_HUB_OFFLINE": "1"}


def _tell(number: int, job: Job, row: Row) -> None:
    outcome = row["failure"]
    if outcome is None:
        outcome = " ".join(f"{seconds:.2f}" for seconds in row["rounds"][-1]["seconds"]) + " s"
    dtype, hidden = job.workload.dtype, job.workload.hidden
    print(
        f"round {number + 1}: {job.contender.name} x{job.processes}, hidden {hidden} {dtype}: "
        f"{outcome}",
        file=sys.stderr,
        flush=True,
    )


def _same_model(rows: Sequence[Row]) -> None:
    """All must have trained the same model."""
    counts = {measured["parameters"] for row in rows for measured in row["rounds"]}
    assert len(counts) <= 1, f"models differ in size: {counts}"

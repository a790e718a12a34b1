"""One process of one measurement: `python -m benchmarks.worker JOB_JSON RESULT_FILE`.

Malloc is tuned before torch is imported, as Megalith does it. Process N of several writes
RESULT_FILE.N.
"""

import json
import os
import sys
from pathlib import Path
from time import time
from typing import Any

from benchmarks.contenders import trainer_of
from benchmarks.job import Job
from megalith.comm.machine import tune_malloc

BEGAN = time()


def main(description: str, result: str) -> None:
    """Runs the job and writes what was measured."""
    job = Job.from_json(description)
    if job.contender.tuned and not tune_malloc(os.environ):
        raise SystemExit("malloc cannot be tuned: it is not glibc's, or the environment tunes it")
    measured = run(job)
    rank = os.environ.get("RANK", "0")
    Path(f"{result}.{rank}").write_text(json.dumps(measured), encoding="utf-8")


def run(job: Job) -> dict[str, Any]:
    """Trains, and says how it went."""
    import torch
    import torch.distributed as dist

    from benchmarks.clock import Clock

    torch.set_num_threads(job.threads)
    clock = Clock()
    trainer_of(job.contender)(job, clock)
    if dist.is_initialized():
        dist.destroy_process_group()  # gloo aborts where a process just ends
    return {
        "seconds": clock.seconds,
        "losses": clock.losses,
        "parameters": clock.parameters,
        "start_seconds": time() - BEGAN - sum(clock.seconds),
        "peak_rss": peak_rss(Path("/proc/self/status").read_text(encoding="utf-8")),
    }


def peak_rss(status: str) -> int:
    """The most memory that a process ever had, in bytes, from its /proc status.

    `resource.getrusage` would count the parent's, from before this program was loaded.
    """
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

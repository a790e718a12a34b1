"""Where the time of our step goes: `python -m benchmarks.profile_step --help`."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page, store
from benchmarks.contenders import OURS
from benchmarks.job import Job
from benchmarks.machine import describe
from benchmarks.step_speed import chosen_workloads, size_options
from benchmarks.table import profile_tables
from megalith.comm.machine import tune_malloc

RESULTS = Path(__file__).parent / "results" / "profile.json"


def main(argv: Sequence[str] | None = None) -> None:
    """Profiles what is asked for, stores it, and writes the page."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.profile_step", description="where the time of our step goes"
    )
    size_options(options)
    options.add_argument("--threads", type=int, default=2, help="CPU threads")
    options.add_argument("--warmup", type=int, default=2, help="steps before the profile")
    options.add_argument("--steps", type=int, default=3, help="steps in the profile")
    asked = options.parse_args(argv)
    machine = describe(asked.threads)
    tune_malloc(os.environ)  # as a run does, before torch is imported
    from benchmarks.profiling import profile

    for work in chosen_workloads(asked):
        job = Job(work, OURS, asked.warmup + asked.steps, 1, asked.threads)
        piece = store.piece_of(machine, work, asked.warmup, [profile(job, asked.warmup)])
        print(profile_tables([piece]), flush=True)
        if not asked.tiny:
            page.update("profile", profile_tables(store.add(RESULTS, piece)))


if __name__ == "__main__":
    main()

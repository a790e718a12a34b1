"""Two data-parallel processes: `python -m benchmarks.data_parallel --help`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page, store
from benchmarks.contenders import OURS, all_contenders, choose
from benchmarks.job import Contender, Job, Workload
from benchmarks.machine import describe
from benchmarks.rounds import play
from benchmarks.step_speed import chosen_workloads, measuring
from benchmarks.table import tables

RESULTS = Path(__file__).parent / "results" / "data_parallel.json"

PROCESSES = 2


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what is asked for, stores it, and writes the page."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.data_parallel",
        description="two processes of one thread each, and our single process of two threads",
    )
    measuring(options)
    asked = options.parse_args(argv)
    available = all_contenders(("minimal", "transformers"))
    names = asked.contenders or [contender.name for contender in available]
    machine = describe(PROCESSES)
    for work in chosen_workloads(asked):
        jobs = jobs_of(work, choose(available, names), asked.warmup + asked.steps)
        piece = store.piece_of(machine, work, asked.warmup, play(jobs, asked.rounds))
        print(tables([piece]), flush=True)
        if not asked.tiny:
            page.update("data_parallel", tables(store.add(RESULTS, piece)))


def jobs_of(work: Workload, contenders: Sequence[Contender], steps: int) -> list[Job]:
    """All contenders in two processes, and ours in one, with the same global batch."""
    single = Job(work, OURS, steps, 1, PROCESSES)
    return [single, *(Job(work, contender, steps, PROCESSES, 1) for contender in contenders)]


if __name__ == "__main__":
    main()

"""Speed and memory of one process: `python -m benchmarks.step_speed --help`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page, store
from benchmarks.contenders import all_contenders, choose
from benchmarks.job import Job, Workload
from benchmarks.machine import describe
from benchmarks.rounds import play
from benchmarks.table import tables

RESULTS = Path(__file__).parent / "results" / "step_speed.json"

HEADS = {256: 4, 768: 12}


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what is asked for, stores it, and writes the page."""
    options = parser().parse_args(argv)
    available = all_contenders(("minimal", "transformers", "trainer"))
    names = options.contenders or [contender.name for contender in available]
    chosen = choose(available, names)
    machine = describe(options.threads)
    for work in chosen_workloads(options):
        steps = options.warmup + options.steps
        jobs = [Job(work, contender, steps, 1, options.threads) for contender in chosen]
        piece = store.piece_of(machine, work, options.warmup, play(jobs, options.rounds))
        print(tables([piece]), flush=True)
        if not options.tiny:
            page.update("step_speed", tables(store.add(RESULTS, piece)))


def parser() -> argparse.ArgumentParser:
    """The options; the defaults are the whole matrix."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.step_speed", description=__doc__.partition(":")[0]
    )
    measuring(options)
    options.add_argument("--threads", type=int, default=2, help="CPU threads of a contender")
    return options


def measuring(options: argparse.ArgumentParser) -> None:
    """The options of what is measured, and how often."""
    size_options(options)
    add = options.add_argument
    add("--contenders", nargs="+", metavar="NAME", help="who besides ours; default all")
    add("--rounds", type=int, default=2, help="fresh starts of each contender")
    add("--warmup", type=int, default=2, help="steps of a round that do not count")
    add("--steps", type=int, default=4, help="steps of a round that count")


def size_options(options: argparse.ArgumentParser) -> None:
    """The options of `chosen_workloads`."""
    add = options.add_argument
    add("--hidden", type=int, nargs="+", choices=HEADS, default=list(HEADS), help="model widths")
    add("--dtype", nargs="+", choices=("fp32", "bf16"), default=["fp32", "bf16"])
    add("--tiny", action="store_true", help="a toy model, to see that all works; prints only")


def chosen_workloads(asked: argparse.Namespace) -> list[Workload]:
    """The models and types to measure."""
    if asked.tiny:
        return [Workload(64, 2, dtype, 2, 64, 4, 512) for dtype in asked.dtype]
    return [
        Workload(hidden, HEADS[hidden], dtype) for hidden in asked.hidden for dtype in asked.dtype
    ]


if __name__ == "__main__":
    main()

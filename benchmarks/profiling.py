"""Our step under PyTorch's profiler."""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator
from statistics import median
from time import perf_counter

import torch
from torch.autograd.profiler_util import FunctionEvent

from benchmarks.batches import batches
from benchmarks.job import Job
from benchmarks.kinds import kind_of
from benchmarks.ours import RATES, build, microbatch
from benchmarks.rounds import Row


def profile(job: Job, warmup: int) -> Row:
    """Seconds of a step by kind ("kinds"), and with and without the profiler's own cost."""
    step = build(job)
    steps = [
        lambda number=number, batch=batch: step([microbatch(job, number, *batch)], RATES)
        for number, batch in enumerate(batches(job))
    ]
    plain = [_seconds(once) for once in steps][warmup:]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        watched = [_seconds(once) for once in steps[warmup:]]
    microseconds: Counter[str] = Counter()
    for event in profiler.events():
        microseconds[kind_of(event.name, _callers(event))] += event.self_cpu_time_total
    kinds = {kind: total / 1e6 / len(watched) for kind, total in microseconds.most_common()}
    kinds["Python between operations"] = sum(watched) / len(watched) - sum(kinds.values())
    return {
        "job": dataclasses.asdict(job),
        "kinds": kinds,
        "step": median(plain),
        "watched_step": median(watched),
    }


def _seconds(run: Callable[[], object]) -> float:
    start = perf_counter()
    run()
    return perf_counter() - start


def _callers(event: FunctionEvent) -> Iterator[str]:
    caller = event.cpu_parent
    while caller is not None:
        yield caller.name
        caller = caller.cpu_parent

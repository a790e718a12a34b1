"""Who takes part. Imports no torch."""

import importlib
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.job import Contender

OURS = Contender("megalith", tuned=True)
"""Megalith as it is: it tunes malloc by itself."""

MODULES = {
    "megalith": "benchmarks.ours",
    "minimal": "benchmarks.peers.minimal_gpt",
    "transformers": "benchmarks.peers.transformers_loop",
    "trainer": "benchmarks.peers.transformers_trainer",
}


def all_contenders(trainers: Iterable[str]) -> list[Contender]:
    """Ours with and without tuning, then each trainer with and without compilation and tuning."""
    peers = [
        Contender(trainer, compiled, tuned)
        for trainer in trainers
        for compiled in (False, True)
        for tuned in (False, True)
    ]
    return [OURS, Contender("megalith"), *peers]


def choose(available: Iterable[Contender], names: Iterable[str]) -> list[Contender]:
    """Ours, and the contenders that are named; raises SystemExit for a name that there is not."""
    by_name = {contender.name: contender for contender in available}
    unknown = sorted(set(names) - by_name.keys())
    if unknown:
        raise SystemExit(f"no contender {', '.join(unknown)}: there are {', '.join(by_name)}")
    return list(dict.fromkeys([OURS, *(by_name[name] for name in names)]))


def trainer_of(contender: Contender) -> Callable[..., Any]:
    """The `train(job, clock)` of a contender."""
    train: Callable[..., Any] = importlib.import_module(MODULES[contender.trainer]).train
    return train

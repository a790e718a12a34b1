"""Where the time of a step goes, by phase."""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter
from types import TracebackType

import torch
import torch.distributed as dist

from megalith.comm.mesh import Mesh


class Stopwatch:
    """Adds up the seconds between entering and leaving it."""

    def __init__(self, device: torch.device) -> None:
        self.seconds = 0.0
        self._device = device
        self._start: float | None = None

    def __enter__(self) -> "Stopwatch":
        assert self._start is None, "a phase cannot contain itself"
        self._start = self._now()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._start is not None
        # After an error the device may never finish what it was given.
        end = self._now() if error is None else perf_counter()
        self.seconds += end - self._start
        self._start = None

    def _now(self) -> float:
        if self._device.type != "cpu":
            torch.accelerator.synchronize(self._device)
        return perf_counter()


class Timers:
    """Seconds by phase, for the phases that `--timing-log-level` asks for.

    Phases carry Megatron-LM's names: level 1 has "batch-generator", "forward-backward",
    "all-grads-sync" and "optimizer", level 2 also "forward-compute" and "backward-compute" of each
    microbatch. A phase above the level costs nothing and does not wait for the device; a measured
    one does, at both ends.
    """

    def __init__(self, level: int, device: torch.device) -> None:
        self._level = level
        self._device = device
        self._watches: dict[str, Stopwatch] = {}
        self._idle = nullcontext()

    def measure(self, phase: str, level: int = 1) -> AbstractContextManager[object]:
        """A context whose time is added to `phase`."""
        if level > self._level:
            return self._idle
        watch = self._watches.get(phase)
        if watch is None:
            watch = self._watches[phase] = Stopwatch(self._device)
        return watch

    def summary(self) -> dict[str, float]:
        """Seconds of each phase on this rank since the last reset."""
        return {phase: watch.seconds for phase, watch in self._watches.items()}

    def reset(self) -> None:
        """Begins again at zero, between steps."""
        for watch in self._watches.values():
            watch.seconds = 0.0

    def across_ranks(self, mesh: Mesh, iterations: int = 1) -> dict[str, tuple[float, float]]:
        """(least, most) seconds of each phase over the ranks, per iteration; all ranks call it.

        A phase that a rank does not have leaves the others' times as they are. Nothing is sent when
        nothing is measured.
        """
        if self._level == 0:
            return {}
        own = {phase: seconds / iterations for phase, seconds in self.summary().items()}
        everyone: list[dict[str, float]] = [own]
        if mesh.world is not None:
            everyone = [{} for _ in range(mesh.world_size)]
            dist.all_gather_object(everyone, own, group=mesh.world)
        return _ranges(everyone)


def _ranges(summaries: Iterable[dict[str, float]]) -> dict[str, tuple[float, float]]:
    ranges: dict[str, tuple[float, float]] = {}
    for summary in summaries:
        for phase, seconds in summary.items():
            least, most = ranges.get(phase, (seconds, seconds))
            ranges[phase] = min(least, seconds), max(most, seconds)
    return ranges

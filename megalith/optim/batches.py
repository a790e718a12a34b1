"""The global batch over the course of training: constant, ramped up or stepped."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil

from megalith.config.batches import batch_schedule, rampup_batches
from megalith.config.schema import TrainingConfig


@dataclass(frozen=True)
class BatchSchedule:
    """Global batch size as a function of the samples consumed so far.

    `starts[i]` is the number of consumed samples from which the batch is `sizes[i]`. `granule` is
    what one microbatch of every replica takes: micro-batch size x data-parallel ranks, in
    sequences. A size that it does not divide runs rounded down.
    """

    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    granule: int = 1

    @staticmethod
    def of(training: TrainingConfig, seq_length: int, data_parallel: int) -> "BatchSchedule":
        """The schedule of a resolved configuration."""
        granule = training.micro_batch_size * data_parallel
        stages = list(_stages(training, seq_length))
        starts, sizes = zip(*stages, strict=True)
        return BatchSchedule(starts, sizes, granule)

    def nominal(self, consumed: int) -> int:
        """The batch that the settings ask for, in sequences."""
        return self.sizes[bisect_right(self.starts, consumed) - 1]

    def at(self, consumed: int) -> int:
        """The batch of the step that begins after `consumed` samples, in sequences."""
        return self._running(self.nominal(consumed))

    def microbatches(self, consumed: int) -> int:
        """Microbatches of each replica in that step."""
        return self.at(consumed) // self.granule

    def samples_after(self, iterations: int, consumed: int = 0) -> int:
        """Samples consumed after so many more steps."""
        for start, end, batch in self._spans(consumed):
            steps = iterations if end is None else min(iterations, ceil((end - start) / batch))
            consumed, iterations = start + steps * batch, iterations - steps
            if iterations == 0:
                break
        return consumed

    def iterations_within(self, samples: int, consumed: int = 0) -> int:
        """Whole steps that fit until `samples` are consumed in all; no step passes that mark."""
        iterations = 0
        for start, end, batch in self._spans(consumed):
            steps = max(samples - start, 0) // batch
            if end is None or start + steps * batch < end:
                return iterations + steps
            iterations += ceil((end - start) / batch)
        return iterations

    def as_asked(self) -> "BatchSchedule":
        """The same schedule without rounding to what the replicas divide.

        Schedules of learning rate and weight decay count with it, so that they do not depend on
        the number of ranks.
        """
        return BatchSchedule(self.starts, self.sizes)

    def _running(self, batch: int) -> int:
        running = batch // self.granule * self.granule
        assert running > 0, (batch, self.granule)
        return running

    def _spans(self, consumed: int) -> Iterator[tuple[int, int | None, int]]:
        """(first sample, start of the next stage or None, batch) of each run of equal steps."""
        place = bisect_right(self.starts, consumed) - 1
        while place < len(self.starts) - 1:
            end, batch = self.starts[place + 1], self._running(self.sizes[place])
            yield consumed, end, batch
            consumed += ceil((end - consumed) / batch) * batch
            place = bisect_right(self.starts, consumed) - 1
        yield consumed, None, self._running(self.sizes[-1])


def _stages(training: TrainingConfig, seq_length: int) -> Iterator[tuple[int, int]]:
    """(samples from which, batch), by rising samples from 0."""
    if training.step_batch_size_schedule is not None:
        for tokens, batch in batch_schedule(training.step_batch_size_schedule):
            yield tokens // seq_length, batch
    elif training.rampup_batch_size is not None:
        yield from _ramp(training.rampup_batch_size, training.global_batch_size)
    else:
        yield 0, training.global_batch_size


def _ramp(rampup: tuple[int, ...], global_batch_size: int) -> Iterator[tuple[int, int]]:
    """Megatron-LM's ramp: after c of N samples, `int(c / (N / increments))` increments are made."""
    sizes = list(rampup_batches(rampup, global_batch_size))
    samples = rampup[2]
    per_increment = samples / (len(sizes) - 1)
    yield 0, sizes[0]
    for increments, batch in enumerate(sizes[1:], start=1):
        yield min(_first_after(increments, per_increment), samples + 1), batch


def _first_after(increments: int, per_increment: float) -> int:
    """The least whole c with `int(c / per_increment) >= increments`, in the same floating point."""
    if per_increment == 0:
        return 0
    first = max(int(increments * per_increment) - 1, 0)
    while int(first / per_increment) < increments:
        first += 1
    return first

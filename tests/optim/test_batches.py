"""The global batch over training: Megatron-LM's ramp and steps, and no sample lost."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from megalith.config.schema import TrainingConfig
from megalith.optim.batches import BatchSchedule


def _training(**settings: object) -> TrainingConfig:
    return TrainingConfig(micro_batch_size=1, **settings)  # type: ignore[arg-type]


def _ramp_as_written(start: int, step: int, samples: int, full: int, consumed: int) -> int:
    """The rule as Megatron-LM states it, without looking ahead."""
    if consumed > samples:
        return full
    per_increment = samples / ((full - start) // step)
    return start + int(consumed / per_increment) * step if per_increment else full


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(1, 500), st.data())
def test_ramp_up_is_the_rule_at_every_sample(
    start: int, step: int, increments: int, samples: int, data: st.DataObject
) -> None:
    full = start + step * increments
    training = _training(global_batch_size=full, rampup_batch_size=(start, step, samples))
    schedule = BatchSchedule.of(training, 1, 1)
    consumed = data.draw(st.integers(0, samples + 50))
    assert schedule.at(consumed) == _ramp_as_written(start, step, samples, full, consumed)


def test_steps_follow_the_tokens_seen() -> None:
    training = _training(global_batch_size=1, step_batch_size_schedule="0:2 100:4 1K:8")
    schedule = BatchSchedule.of(training, 10, 1)
    assert [schedule.at(n) for n in (0, 9, 10, 99, 100, 10**6)] == [2, 2, 4, 4, 8, 8]


def test_batch_is_rounded_down_to_what_the_replicas_divide() -> None:
    training = TrainingConfig(
        micro_batch_size=2, global_batch_size=11, decrease_batch_size_if_needed=True
    )
    schedule = BatchSchedule.of(training, 1, 2)
    assert (schedule.at(0), schedule.nominal(0), schedule.microbatches(0)) == (8, 11, 2)
    assert schedule.as_asked().at(0) == 11


schedules = st.lists(st.tuples(st.integers(0, 200), st.integers(1, 20)), min_size=1, max_size=5)


@settings(max_examples=100, deadline=None)
@given(schedules, st.integers(0, 60), st.integers(0, 30))
def test_counting_ahead_equals_going_step_by_step(
    stages: list[tuple[int, int]], steps: int, before: int
) -> None:
    starts = sorted({start for start, _ in stages} | {0})
    sizes = tuple((stages[i % len(stages)][1]) for i in range(len(starts)))
    schedule = BatchSchedule(tuple(starts), sizes)
    consumed = 0
    for _ in range(before):
        consumed += schedule.at(consumed)
    ahead = consumed
    for _ in range(steps):
        ahead += schedule.at(ahead)
    assert schedule.samples_after(steps, consumed) == ahead


@settings(max_examples=100, deadline=None)
@given(schedules, st.integers(0, 400))
def test_training_by_samples_uses_whole_batches_and_never_more(
    stages: list[tuple[int, int]], samples: int
) -> None:
    starts = sorted({start for start, _ in stages} | {0})
    sizes = tuple((stages[i % len(stages)][1]) for i in range(len(starts)))
    assume(sizes[0] > 0)
    schedule = BatchSchedule(tuple(starts), sizes)
    iterations = schedule.iterations_within(samples)
    done = schedule.samples_after(iterations)
    assert done <= samples < done + schedule.at(done)

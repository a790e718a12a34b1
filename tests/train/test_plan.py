"""When a run evaluates, and on which samples."""

from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.config.schema import TrainingConfig
from megalith.train.plan import EvaluationPlan


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 9), st.integers(0, 20), st.integers(1, 3), st.integers(1, 4), st.integers(0, 40)
)
def test_evaluations_take_successive_samples(
    interval: int, first: int, iterations: int, batch: int, last: int
) -> None:
    plan = EvaluationPlan(interval, first, iterations, batch, whole=False)
    taken = 0
    for iteration in range(1, last + 1):
        if plan.due(iteration):
            assert iteration % interval == 0 and iteration >= first
            assert plan.first_sample(iteration) == taken
            taken += iterations * batch
    assert plan.first_sample(last, final=True) == taken
    assert plan.samples(last) == taken + iterations * batch


def test_request_is_megatrons_without_a_late_start() -> None:
    plan = EvaluationPlan(100, 0, 10, 8, whole=False)
    assert plan.samples(1050) == (1050 // 100 + 1) * 10 * 8


def test_whole_split_is_taken_from_its_start_with_its_rest() -> None:
    plan = EvaluationPlan(5, 0, 100, 8, whole=True)
    assert plan.samples(50) is None and plan.first_sample(10) == 0
    assert plan.batches(17) == 3 and plan.batches(16) == 2


def test_without_an_interval_there_is_only_the_end() -> None:
    plan = EvaluationPlan(None, 0, 3, 8, whole=False)
    assert not any(plan.due(iteration) for iteration in range(1, 50))
    assert plan.samples(50) == 24
    assert not EvaluationPlan(5, 0, 0, 8, whole=False).due(5)


def test_batch_is_what_the_replicas_divide() -> None:
    training = TrainingConfig(eval_global_batch_size=11, eval_micro_batch_size=2)
    assert EvaluationPlan.of(training, 2).batch == 8

"""Learning rate and weight decay, formula by formula."""

import math
from dataclasses import replace
from typing import Any

import pytest

from megalith.config.flags import load_run
from megalith.config.schema import OptimizerConfig, RunConfig
from megalith.errors import MegalithError
from megalith.optim.batches import BatchSchedule
from megalith.optim.schedule import LearningRateSchedule, Schedules, WeightDecaySchedule

RATES = LearningRateSchedule(max_lr=1.0, min_lr=0.1, init_lr=0.5, warmup=10, decay=110)


def _rates(**changes: Any) -> LearningRateSchedule:
    return replace(RATES, **changes)


@pytest.mark.parametrize("style", ["constant", "linear", "cosine", "inverse-square-root", "WSD"])
def test_warm_up_is_a_line_from_the_initial_rate(style: str) -> None:
    rates = _rates(style=style, wsd_decay=20)
    assert [rates.at(n) for n in (0, 5, 10)] == [0.5, 0.75, 1.0]


@pytest.mark.parametrize(
    ("style", "samples", "expected"),
    [
        ("constant", 1000, 1.0),
        ("linear", 60, 0.1 + 0.9 * 0.5),
        ("linear", 110, 0.1),
        ("linear", 111, 0.1),
        ("cosine", 35, 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi / 4))),
        ("cosine", 110, 0.1),
        ("inverse-square-root", 40, math.sqrt(10) / math.sqrt(40)),
        ("inverse-square-root", 109, math.sqrt(10) / math.sqrt(109)),
        ("inverse-square-root", 200, 0.1),
    ],
)
def test_decay(style: str, samples: int, expected: float) -> None:
    assert _rates(style=style).at(samples) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "share"),
    [
        ("linear", 0.75),
        ("cosine", 0.5 * (1 + math.cos(math.pi / 4))),
        ("exponential", 2 * 0.5**0.25 - 1),
        ("minus_sqrt", 0.5),
    ],
)
def test_stable_phase_then_decay(shape: str, share: float) -> None:
    rates = _rates(style="WSD", wsd_decay=40, wsd_style=shape)
    assert rates.at(11) == rates.at(70) == 1.0
    assert rates.at(80) == pytest.approx(0.1 + 0.9 * share, rel=1e-12)
    assert rates.at(110) == pytest.approx(0.1, abs=1e-12)
    assert rates.at(111) == 0.1


def test_first_step_of_a_warm_up_from_zero_runs_at_zero() -> None:
    assert _rates(init_lr=0.0).at(0) == 0.0
    assert _rates(warmup=0, style="linear", decay=100).at(0) == 1.0


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("constant", 0.3),
        ("linear", 0.15),
        ("cosine", 0.1 + 0.2 * 0.5 * (1 + math.cos(math.pi * 0.75))),
    ],
)
def test_weight_decay(style: str, expected: float) -> None:
    decay = WeightDecaySchedule(0.1, 0.3, 100, style)
    assert decay.at(25) == pytest.approx(expected, rel=1e-12)
    assert decay.at(101) == 0.3


def _config(*words: str) -> RunConfig:
    base = "--preset tiny-gpt2 --mock-data --micro-batch-size 2 --global-batch-size 4 --lr 1"
    return load_run([*base.split(), *words], "gpt", 1).config


def _schedules(*words: str) -> Schedules:
    config = _config(*words)
    return Schedules.of(config, BatchSchedule.of(config.training, config.model.seq_length, 1))


def test_lengths_in_iterations_become_samples() -> None:
    rates = _schedules("--train-iters", "10", "--lr-warmup-iters", "3").learning_rate
    assert (rates.warmup, rates.decay) == (12, 40)
    rates = _schedules("--train-iters", "10", "--lr-decay-iters", "5").learning_rate
    assert rates.decay == 20
    rates = _schedules("--train-iters", "10", "--lr-warmup-fraction", "0.25").learning_rate
    assert rates.warmup == 10


def test_lengths_in_samples_stay() -> None:
    words = "--train-samples 100 --lr-warmup-samples 7 --lr-decay-samples 90".split()
    rates = _schedules(*words).learning_rate
    assert (rates.warmup, rates.decay) == (7, 90)


def test_last_part_of_wsd_is_counted_in_the_run_s_unit() -> None:
    words = "--lr-decay-style WSD --train-samples 100 --lr-wsd-decay-samples 30".split()
    assert _schedules(*words).learning_rate.wsd_decay == 30
    words = "--lr-decay-style WSD --train-iters 10 --lr-wsd-decay-iters 3".split()
    assert _schedules(*words).learning_rate.wsd_decay == 12


def test_iterations_of_a_ramp_up_are_counted_at_its_batches() -> None:
    words = "--train-iters 10 --rampup-batch-size 2 2 8 --lr-warmup-iters 3".split()
    assert _schedules(*words).learning_rate.warmup == 6
    assert _schedules(*words).learning_rate.decay == 4 * 2 + 6 * 4


def test_decoupled_rate_follows_the_same_shape() -> None:
    schedules = _schedules("--train-iters", "10", "--decoupled-lr", "0.5", "--min-lr", "0.1")
    assert schedules.is_decoupled
    assert schedules.decoupled.at(0) == 0.5 and schedules.decoupled.at(40) == 0.1
    assert not _schedules("--train-iters", "10").is_decoupled


def test_resume_refuses_another_schedule_unless_told_which() -> None:
    saved = _schedules("--train-iters", "10")
    given = _schedules("--train-iters", "20", "--weight-decay", "0.5")
    with pytest.raises(MegalithError) as caught:
        given.resumed(saved.state(), OptimizerConfig())
    message = str(caught.value)
    assert "the decay length in samples" in message and "40 in the checkpoint, 80 now" in message
    assert "--end-weight-decay (or --weight-decay): 0.01 in the checkpoint, 0.5 now" in message
    assert given.resumed(saved.state(), OptimizerConfig(override_opt_param_scheduler=True)) == given
    keep = OptimizerConfig(use_checkpoint_opt_param_scheduler=True)
    assert given.resumed(saved.state(), keep) == saved
    assert saved.resumed(saved.state(), OptimizerConfig()) == saved


def test_values_that_a_style_does_not_read_may_differ() -> None:
    saved = replace(_schedules("--train-iters", "10"), learning_rate=_rates(style="constant"))
    given = replace(saved, learning_rate=_rates(style="constant", decay=999, min_lr=0.2))
    assert given.resumed(saved.state(), OptimizerConfig()).learning_rate.at(50) == 1.0

"""Settings that a run will not read are told at its start."""

import pytest

from megalith.config.flags import parse_run


@pytest.mark.parametrize(
    ("words", "notice"),
    [
        (
            "--rotary-base 5",
            "--rotary-base has no effect: --position-embedding-type is learned_abs",
        ),
        ("--num-query-groups 2 --num-attention-heads 4", "--group-query-attention is off"),
        ("--swiglu --no-bias-gelu-fusion", "--bias-gelu-fusion has no effect: the MLP has no GELU"),
        ("--loss-scale-window 5", "only --fp16 scales the loss"),
        ("--fp16 --loss-scale 8 --hysteresis 3", "--loss-scale 8.0 is fixed"),
        ("--lr-decay-style constant --min-lr 1e-5", "--min-lr has no effect"),
        ("--lr-wsd-decay-iters 5", "--lr-decay-style is linear, not WSD"),
        ("--lr-warmup-init 0.1", "there is no warm-up"),
        ("--decoupled-min-lr 0.1", "--decoupled-lr is not given"),
        ("--optimizer sgd --adam-eps 1", "--adam-eps has no effect: --optimizer is sgd"),
        ("--sgd-momentum 0.5", "--optimizer is adam"),
        ("--no-load-optim", "nothing is loaded without --load"),
        ("--load x --finetune --no-load-rng", "--finetune loads weights only"),
        ("--save-interval 5", "nothing is saved without --save"),
        ("--eval-iters 0 --eval-interval 5", "--eval-iters 0 switches evaluation off"),
        ("--recompute-granularity selective", "attention always recomputes its weights"),
        ("--recompute-num-layers 2", "--recompute-granularity is None, not full"),
        ("--mock-data --split 1,0,0", "--mock-data makes its own"),
        ("--wandb-mode offline", "there is no --wandb-project"),
    ],
)
def test_idle_setting_is_told(words: str, notice: str) -> None:
    assert any(notice in line for line in parse_run(words.split()).notices)


@pytest.mark.parametrize(
    "words", ["--rotary-base 5 --position-embedding-type rope", "--min-lr 0", "--preset tiny-llama"]
)
def test_setting_that_is_read_or_at_its_default_is_not_told(words: str) -> None:
    assert parse_run(words.split()).notices == []

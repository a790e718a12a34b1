"""Each rule between settings: its message names the flags, their values and the way out."""

import pytest

from megalith.config.flags import load_run
from megalith.config.rules import BASIC_RULES, COMPUTING_RULES, PLAIN_RULES, resolve_vocabulary
from megalith.errors import MegalithError

GOOD = {
    "--num-layers": "2",
    "--hidden-size": "32",
    "--num-attention-heads": "4",
    "--seq-length": "16",
    "--micro-batch-size": "2",
    "--train-iters": "10",
    "--lr": "0.1",
    "--mock-data": "",
}

BROKEN = {
    "required_are_given": ("--num-layers=", r"--num-layers is missing: give it \(or name a model"),
    "sizes_are_positive": ("--hidden-size=-32", "--hidden-size -32 must be above 0"),
    "values_lie_in_range": ("--hidden-dropout=1", "--hidden-dropout 1 must be from 0 to 1"),
    "parallelism_is_there": (
        "--tensor-model-parallel-size=2",
        "--tensor-model-parallel-size 2: tensor parallelism is not there yet. Give",
    ),
    "one_kind_of_mlp": (
        "--swiglu --squared-relu",
        "--swiglu and --squared-relu exclude each other",
    ),
    "one_precision": ("--fp16 --bf16", "--fp16 and --bf16"),
    "length_of_training": ("--train-samples=5", "--train-iters 10 and --train-samples 5 both"),
    "one_unit_of_length": (
        "--lr-decay-samples=5",
        "--lr-decay-samples 5 counts samples but --train-iters counts iters: use --lr-decay-iters",
    ),
    "warmup_is_given_once": (
        "--lr-warmup-fraction=0.1 --lr-warmup-iters=2",
        "--lr-warmup-fraction 0.1 and --lr-warmup-iters 2 both set the warm-up: keep one",
    ),
    "schedule_fits": (
        "--lr-warmup-iters=10",
        "--lr-warmup-iters 10 must be below --lr-decay-iters 10",
    ),
    "wsd_has_an_end": ("--lr-decay-style=WSD", "WSD needs the length of its last part"),
    "learning_rates_in_order": ("--min-lr=0.2", "--min-lr 0.2 is above --lr 0.1: lower it"),
    "weight_decay_has_a_way": (
        "--start-weight-decay=0.5",
        "--start-weight-decay 0.5 and --end-weight-decay 0.01 differ",
    ),
    "one_scheduler_wins": (
        "--load=x --override-opt-param-scheduler --use-checkpoint-opt-param-scheduler",
        "contradict each other: keep one",
    ),
    "one_batch_schedule": (
        "--rampup-batch-size=2,2,8 --step-batch-size-schedule=0:2 --global-batch-size=4",
        "--rampup-batch-size and --step-batch-size-schedule both",
    ),
    "recompute_is_complete": (
        "--recompute-granularity=full --recompute-num-layers=3",
        "--recompute-num-layers 3 is more than --num-layers 2: lower it",
    ),
    "checkpoint_is_named": ("--use-checkpoint-args", "--use-checkpoint-args needs a checkpoint"),
    "data_is_named": ("--no-mock-data", "no data: give --data-path PREFIX"),
    "split_is_readable": ("--split=9,x", "--split '9,x' must be numbers with commas"),
    "tokenizer_has_its_files": ("--vocab-file=v.json", "--merge-file is missing"),
    "heads_divide_hidden": (
        "--hidden-size=30",
        "--hidden-size 30 is no multiple of --num-attention-heads 4",
    ),
    "groups_divide_heads": (
        "--group-query-attention --num-query-groups=3",
        "--num-attention-heads 4 is no multiple of --num-query-groups 3",
    ),
    "rotation_takes_pairs": (
        "--position-embedding-type=rope --rotary-percent=0.2",
        "--rotary-percent 0.2 of heads of size 8 rotates 1 channels",
    ),
    "sequence_fits_positions": (
        "--max-position-embeddings=8",
        "--seq-length 16 is longer than --max-position-embeddings 8: raise the latter",
    ),
    "batch_is_divided": (
        "--global-batch-size=5",
        "--global-batch-size 5 is no multiple of micro-batch size x replicas = 2: use 4 or 6",
    ),
    "batch_schedule_fits": (
        "--rampup-batch-size=1,1,8 --global-batch-size=4",
        "--rampup-batch-size 1 1 8: its batch 1 is no multiple",
    ),
    "saves_are_kept": (
        "--save=x --save-interval=4 --save-retain-interval=6",
        "--save-retain-interval 6 is no multiple of --save-interval 4",
    ),
}


def _words(changes: str) -> list[str]:
    given = dict(GOOD)
    for word in changes.split():
        name, _, value = word.partition("=")
        if name.startswith("--no-"):
            given.pop("--" + name[5:])
        elif word.endswith("="):
            given.pop(name)
        else:
            given[name] = value.replace(",", " ") if "rampup" in name else value
    return [part for name, value in given.items() for part in [name, *value.split()]]


def test_good_settings_break_no_rule() -> None:
    assert load_run(_words(""), "gpt", 1).config.training.global_batch_size == 2


@pytest.mark.parametrize("rule", BROKEN)
def test_broken_rule_tells_the_way_out(rule: str) -> None:
    changes, message = BROKEN[rule]
    with pytest.raises(MegalithError, match=message):
        load_run(_words(changes), "gpt", 1)


@pytest.mark.parametrize(
    "flag",
    [
        "--tensor-model-parallel-size",
        "--pipeline-model-parallel-size",
        "--context-parallel-size",
        "--expert-model-parallel-size",
    ],
)
def test_parallelism_that_is_not_there_is_refused(flag: str) -> None:
    with pytest.raises(
        MegalithError, match=f"{flag} 2: .* parallelism is not there yet. Give {flag} 1"
    ):
        load_run(_words(f"{flag}=2"), "gpt", 4)


def test_every_rule_has_its_case() -> None:
    rules = {rule.__name__ for rule in BASIC_RULES + PLAIN_RULES + COMPUTING_RULES}
    # Cannot be broken while every size but data parallelism's must be 1.
    assert rules - BROKEN.keys() == {"world_is_divided"}
    assert BROKEN.keys() <= rules


def test_problems_of_all_kinds_come_together() -> None:
    changes = "--global-batch-size=5 --min-lr=1 --swiglu --squared-relu --split=x"
    with pytest.raises(MegalithError) as caught:
        load_run(_words(changes), "gpt", 1)
    assert str(caught.value).startswith("4 problems with the settings:")


def test_replicas_count_without_being_there() -> None:
    with pytest.raises(MegalithError, match="micro-batch size x replicas = 8: use 8 or 16"):
        load_run(_words("--global-batch-size=12"), "gpt", 4)
    assert load_run(_words(""), "gpt", 4).config.training.global_batch_size == 8


@pytest.mark.parametrize(
    ("changes", "tokens", "sizes"),
    [
        ("", 257, (257, 384)),
        ("--make-vocab-size-divisible-by=4", 257, (257, 260)),
        ("--no-pad-vocab-size=", 257, (257, 257)),
        ("--vocab-size=300", 257, (300, 384)),
        ("--padded-vocab-size=1000", 257, (257, 1000)),
    ],
)
def test_vocabulary_is_padded(changes: str, tokens: int, sizes: tuple[int, int]) -> None:
    words = _words(changes.replace("--no-pad-vocab-size=", ""))
    words += ["--no-pad-vocab-size"] if "--no-pad" in changes else []
    model = resolve_vocabulary(load_run(words, "gpt", 1).config, tokens).model
    assert (model.vocab_size, model.padded_vocab_size) == sizes


def test_vocabulary_must_hold_all_tokens() -> None:
    config = load_run(_words("--vocab-size=100"), "gpt", 1).config
    with pytest.raises(MegalithError, match="--vocab-size 100 is smaller than the tokenizer's 257"):
        resolve_vocabulary(config, 257)
    config = load_run(_words("--padded-vocab-size=100"), "gpt", 1).config
    with pytest.raises(MegalithError, match="--padded-vocab-size 100 must be at least"):
        resolve_vocabulary(config, 257)

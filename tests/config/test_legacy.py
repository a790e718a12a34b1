"""Every flag that Megatron-LM has or had is a setting here, or is told what becomes of it."""

import csv
from pathlib import Path

import pytest

from megalith.config import legacy
from megalith.config.fates import ACCEPTED, REFUSED, RENAMED
from megalith.config.flags import parse_prepare, parse_run
from megalith.config.parser import known_flags
from megalith.config.schema import GenerateConfig, PrepareConfig, RunConfig
from megalith.config.translate import split, translate
from megalith.errors import MegalithError

TABLE = Path(__file__).with_name("megatron_flags.tsv")
ROWS = list(csv.DictReader(TABLE.open(), delimiter="\t"))
FLAGS = sorted(
    {flag.replace("_", "-") for row in ROWS for flag in [row["flag"], *row["aliases"].split()]}
)
KNOWN = known_flags(RunConfig) | known_flags(PrepareConfig) | known_flags(GenerateConfig)
RUN = known_flags(RunConfig)


def _value_words(kind: str) -> list[str]:
    """Values as a script would give them to a flag of that type."""
    if kind == "bool" or not kind:
        return []
    return ["1", "2"] if "nargs" in kind else ["1"]


def test_table_is_whole() -> None:
    assert len(ROWS) == 1086


@pytest.mark.parametrize("flag", FLAGS)
def test_every_flag_has_a_fate(flag: str) -> None:
    if flag in KNOWN:
        return
    entry = legacy.find(flag)
    assert entry is not None, f"{flag} would be unknown"
    if entry.row.fate == REFUSED:
        assert len(entry.row.text.split()) >= 4, "a reason is a sentence"
    if entry.row.fate == RENAMED:
        assert all(name in RUN for name, _ in split(entry.row.text.split()))


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row["program"] == "pretrain"], ids=lambda r: r["flag"]
)
def test_values_go_with_their_flag(row: dict[str, str]) -> None:
    """Whatever becomes of a flag, no value of its stays behind as a word of its own."""
    flag = row["flag"].replace("_", "-")
    entry = legacy.find(flag)
    if flag in RUN or entry is None or entry.row.fate == RENAMED:
        return
    words = [flag, *_value_words(row["type"]), "--seed", "7"]
    translation = translate(words, RUN)
    if entry.row.fate == ACCEPTED:
        assert translation.argv == ["--seed", "7"]
    else:
        assert translation.refusals or translation.notices
        assert translation.argv == ["--seed", "7"]


GPT_TODAY = """--num-layers --hidden-size --ffn-hidden-size --num-attention-heads --kv-channels
    --group-query-attention --num-query-groups --seq-length --max-position-embeddings
    --position-embedding-type --rotary-base --rotary-percent --rotary-interleaved --normalization
    --norm-epsilon --apply-layernorm-1p --swiglu --squared-relu --add-qkv-bias --qk-layernorm
    --window-size --untie-embeddings-and-output-weights --hidden-dropout --attention-dropout
    --init-method-std --make-vocab-size-divisible-by --micro-batch-size --global-batch-size
    --rampup-batch-size --train-iters --train-samples --lr --min-lr --lr-decay-style
    --lr-decay-iters --lr-decay-samples --lr-warmup-iters --lr-warmup-samples
    --lr-warmup-fraction --lr-warmup-init --weight-decay --start-weight-decay --end-weight-decay
    --weight-decay-incr-style --clip-grad --adam-beta1 --adam-beta2 --adam-eps --sgd-momentum
    --optimizer --fp16 --bf16 --loss-scale --initial-loss-scale --min-loss-scale
    --loss-scale-window --hysteresis --save --load --save-interval --finetune --no-load-optim
    --no-load-rng --no-save-optim --no-save-rng --ckpt-step --exit-interval
    --exit-duration-in-mins --log-interval --eval-interval --eval-iters --skip-train --data-path
    --split --vocab-file --merge-file --tokenizer-type --tensorboard-dir --wandb-project --seed
    --override-opt-param-scheduler --use-checkpoint-opt-param-scheduler --use-checkpoint-args
    --recompute-granularity --recompute-method --recompute-num-layers --distributed-backend
    --timing-log-level --log-params-norm --log-num-zeros-in-grad --log-throughput
    --eod-mask-loss --reset-position-ids --reset-attention-mask --decoupled-lr
    --decoupled-min-lr""".split()


@pytest.mark.parametrize("flag", GPT_TODAY)
def test_what_exists_is_a_setting_of_its_own(flag: str) -> None:
    assert flag in RUN


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("--batch-size 3", "micro_batch_size", 3),
        ("--warmup 0.01", "lr_warmup_fraction", 0.01),
        ("--model-parallel-size 1", "tensor_model_parallel_size", 1),
        ("--min-scale 2", "min_loss_scale", 2.0),
        ("--layernorm-epsilon 1e-6", "norm_epsilon", 1e-6),
        ("--checkpoint-activations", "recompute_granularity", "full"),
        ("--checkpoint-num-layers 2", "recompute_num_layers", 2),
        ("--override-lr-scheduler", "override_opt_param_scheduler", True),
        ("--override-opt_param-scheduler", "override_opt_param_scheduler", True),
        ("--use-checkpoint-opt_param-scheduler", "use_checkpoint_opt_param_scheduler", True),
        ("--start-wd 0.1", "start_weight_decay", 0.1),
        ("--lr-warmup-percent 0.1", "lr_warmup_fraction", 0.1),
        ("--use-rotary-position-embeddings", "position_embedding_type", "rope"),
        ("--vocab v.json", "vocab_file", "v.json"),
    ],
)
def test_former_names_keep_their_meaning(old: str, new: str, expected: object) -> None:
    config = parse_run(old.split()).config
    values = {**vars(config.training), **vars(config.optimizer), **vars(config.parallel)}
    values |= {**vars(config.precision), **vars(config.model), **vars(config.tokenizer)}
    assert values[new] == expected


@pytest.mark.parametrize("words", ["--data-impl mmap", "--use-mcore-models", "--DDP-impl local"])
def test_flags_without_a_job_are_passed_over(words: str) -> None:
    run = parse_run([*words.split(), "--seed", "3"])
    assert run.config.training.seed == 3


def test_refusal_gives_reason_and_nearest_thing() -> None:
    with pytest.raises(MegalithError, match="--num-experts 8: no mixture of experts yet"):
        parse_run("--num-experts 8".split())
    with pytest.raises(MegalithError, match="--split-sentences: "):
        parse_prepare("--input a --output-prefix b --split-sentences".split())


def test_kernel_switches_are_accepted_with_one_notice() -> None:
    notices = parse_run("--no-rope-fusion --no-masked-softmax-fusion".split()).notices
    assert len([n for n in notices if "--no-rope-fusion, --no-masked-softmax-fusion" in n]) == 1

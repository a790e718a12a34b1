"""Every setting is read by something, and changing it changes what can be seen."""

import ast
import dataclasses
import shlex
from pathlib import Path
from typing import Any

import pytest

from megalith.config.flags import load_run
from megalith.config.rules import resolve_vocabulary
from megalith.config.schema import (
    GenerateConfig,
    ModelConfig,
    PrepareConfig,
    RunConfig,
    groups_of,
    settings_of,
)
from megalith.errors import MegalithError
from tests.train.runs import SMALL, corpus, train_alone

PACKAGE = Path(__file__).parents[2] / "megalith"
DESCRIBING = {"schema.py", "effects.py", "pages.py", "legacy.py"}
"""Files that name settings without acting on them."""

ALL = {
    name: group
    for config in (RunConfig, PrepareConfig, GenerateConfig)
    for _, group in groups_of(config)
    for name in settings_of(group)
}


def _read_attributes() -> set[str]:
    """Names of attributes that the package reads, outside what only describes settings."""
    found = set()
    for path in PACKAGE.rglob("*.py"):
        if path.name not in DESCRIBING:
            found |= {word for text in _rule_words(path) for word in text.split()}
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                    found.add(node.attr)
    return found


def _rule_words(path: Path) -> list[str]:
    """Names that rules read by `getattr`, which stand there as text."""
    if path.name != "rules.py":
        return []
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


READ = _read_attributes()


@pytest.mark.parametrize("name", ALL)
def test_setting_is_read(name: str) -> None:
    assert name in READ, f"nothing reads {name}"


ROPE = "--position-embedding-type rope "
MODEL = {
    "num_layers": "--num-layers 3",
    "hidden_size": "--hidden-size 64",
    "ffn_hidden_size": "--ffn-hidden-size 100",
    "num_attention_heads": "--num-attention-heads 2",
    "group_query_attention": "--group-query-attention",
    "num_query_groups": "--group-query-attention --num-query-groups 2",
    "kv_channels": "--kv-channels 4",
    "seq_length": "--seq-length 8",
    "max_position_embeddings": "--max-position-embeddings 20 --log-params-norm",
    "position_embedding_type": "--position-embedding-type none",
    "rotary_base": ROPE + "--rotary-base 100",
    "rotary_percent": ROPE + "--rotary-percent 0.5",
    "rotary_interleaved": ROPE + "--rotary-interleaved",
    "rotary_seq_len_interpolation_factor": ROPE + "--rotary-seq-len-interpolation-factor 2",
    "use_rope_scaling": ROPE + "--rotary-base 1e9 --use-rope-scaling",
    "rope_scaling_factor": ROPE + "--rotary-base 1e9 --use-rope-scaling --rope-scaling-factor 2",
    "normalization": "--normalization RMSNorm",
    "norm_epsilon": "--norm-epsilon 1e-2",
    "apply_layernorm_1p": "--apply-layernorm-1p",
    "swiglu": "--swiglu",
    "squared_relu": "--squared-relu",
    "quick_geglu": "--quick-geglu",
    "gated_linear_unit": "--gated-linear-unit",
    "bias_gelu_fusion": "--no-bias-gelu-fusion",
    "add_bias_linear": "--disable-bias-linear",
    "add_qkv_bias": "--disable-bias-linear --add-qkv-bias",
    "qk_layernorm": "--qk-layernorm",
    "window_size": "--window-size 2",
    "untie_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
    "hidden_dropout": "--hidden-dropout 0.5",
    "attention_dropout": "--attention-dropout 0.5",
    "init_method_std": "--init-method-std 0.1",
    "embedding_init_method_std": "--embedding-init-method-std 0.1",
    "init_method_xavier_uniform": "--init-method-xavier-uniform",
    "scaled_init_method": "--no-scaled-init-method",
    "vocab_size": "--vocab-size 300",
    "padded_vocab_size": "--padded-vocab-size 400",
    "make_vocab_size_divisible_by": "--make-vocab-size-divisible-by 128",
    "pad_vocab_size": "--make-vocab-size-divisible-by 128 --no-pad-vocab-size",
}
"""How to change each setting of a model; those that need another setting are given with it."""

TRAINING = {
    "params_dtype": "--params-dtype float64",
    "bf16": "--bf16",
    "fp16": "--fp16",
    "loss_scale": "--fp16 --loss-scale 64",
    "initial_loss_scale": "--fp16 --initial-loss-scale 64",
    "min_loss_scale": "--fp16 --initial-loss-scale 1e30 --min-loss-scale 1e30",
    "loss_scale_window": "--fp16 --initial-loss-scale 64 --loss-scale-window 1",
    "hysteresis": "--fp16 --hysteresis 4",
    "optimizer": "--optimizer sgd",
    "lr": "--lr 0.02",
    "min_lr": "--min-lr 0.005",
    "lr_decay_style": "--lr-decay-style cosine",
    "lr_decay_iters": "--lr-decay-iters 4",
    "lr_wsd_decay_style": "--lr-decay-style WSD --lr-wsd-decay-iters 3 --lr-wsd-decay-style linear",
    "lr_wsd_decay_iters": "--lr-decay-style WSD --lr-wsd-decay-iters 2",
    "lr_warmup_iters": "--lr-warmup-iters 1",
    "lr_warmup_fraction": "--lr-warmup-iters 0 --lr-warmup-fraction 0.7",
    "lr_warmup_init": "--lr-warmup-init 0.005",
    "decoupled_lr": "--decoupled-lr 0.05",
    "decoupled_min_lr": "--decoupled-lr 0.05 --decoupled-min-lr 0.04",
    "weight_decay": "--weight-decay 0.9",
    "start_weight_decay": "--weight-decay-incr-style linear --start-weight-decay 0.9",
    "end_weight_decay": "--weight-decay-incr-style linear --end-weight-decay 0.9",
    "weight_decay_incr_style": "--weight-decay-incr-style cosine --end-weight-decay 0.9",
    "apply_wd_to_qk_layernorm": "--qk-layernorm --weight-decay 0.9 --apply-wd-to-qk-layernorm",
    "clip_grad": "--clip-grad 0.01",
    "adam_beta1": "--adam-beta1 0.5",
    "adam_beta2": "--adam-beta2 0.5",
    "adam_eps": "--adam-eps 1e-3",
    "sgd_momentum": "--optimizer sgd --sgd-momentum 0.1",
    "micro_batch_size": "--micro-batch-size 1 --loss-average microbatch --eod-mask-loss",
    "global_batch_size": "--global-batch-size 2",
    "gradient_accumulation_steps": "--gradient-accumulation-steps 3",
    "rampup_batch_size": "--rampup-batch-size 2 2 8",
    "step_batch_size_schedule": "--step-batch-size-schedule '0:2 128:4'",
    "train_iters": "--train-iters 5",
    "iterations_to_skip": "--iterations-to-skip 1",
    "seed": "--seed 2",
    "eval_interval": "--eval-iters 1 --eval-interval 2",
    "eval_iters": "--eval-iters 1",
    "start_eval_at_iter": "--eval-iters 1 --eval-interval 2 --start-eval-at-iter 5",
    "eval_global_batch_size": "--eval-iters 1 --eval-global-batch-size 2",
    "full_validation": "--eval-iters 1 --full-validation",
    "skip_train": "--eval-iters 1 --skip-train",
    "exit_interval": "--exit-interval 3",
    "exit_duration_in_mins": "--exit-duration-in-mins 1e-9",
    "loss_average": "--loss-average microbatch --eod-mask-loss",
    "mock_data": "--mock-data --seq-length 128 --max-position-embeddings 128",
    "split": "--split 10,80,10",
    "dataloader_type": "--dataloader-type cyclic",
    "eod_mask_loss": "--eod-mask-loss",
    "reset_position_ids": "--reset-position-ids",
    "reset_attention_mask": "--reset-attention-mask",
    "log_params_norm": "--log-params-norm",
    "log_num_zeros_in_grad": "--log-num-zeros-in-grad",
}
"""The same for settings that show in the records of a short run."""

# A setting whose default has no effect of its own is compared with its companions alone.
COMPANIONS = {
    "max_position_embeddings": "--log-params-norm",
    "rotary_base": ROPE, "rotary_percent": ROPE, "rotary_interleaved": ROPE,
    "rotary_seq_len_interpolation_factor": ROPE, "use_rope_scaling": ROPE + "--rotary-base 1e9",
    "rope_scaling_factor": ROPE + "--rotary-base 1e9 --use-rope-scaling",
    "num_query_groups": "--group-query-attention", "add_qkv_bias": "--disable-bias-linear",
    "pad_vocab_size": "--make-vocab-size-divisible-by 128",
    "loss_scale": "--fp16", "initial_loss_scale": "--fp16", "hysteresis": "--fp16",
    "min_loss_scale": "--fp16 --initial-loss-scale 1e30",
    "loss_scale_window": "--fp16 --initial-loss-scale 64",
    "lr_wsd_decay_style": "--lr-decay-style WSD --lr-wsd-decay-iters 3",
    "lr_wsd_decay_iters": "--lr-decay-style WSD --lr-wsd-decay-iters 3",
    "lr_warmup_fraction": "--lr-warmup-iters 0", "decoupled_min_lr": "--decoupled-lr 0.05",
    "start_weight_decay": "--weight-decay-incr-style linear",
    "end_weight_decay": "--weight-decay-incr-style linear",
    "weight_decay_incr_style": "--weight-decay-incr-style linear --end-weight-decay 0.9",
    "apply_wd_to_qk_layernorm": "--qk-layernorm --weight-decay 0.9",
    "sgd_momentum": "--optimizer sgd", "eval_interval": "--eval-iters 1",
    "micro_batch_size": "--loss-average microbatch --eod-mask-loss",
    "start_eval_at_iter": "--eval-iters 1 --eval-interval 2",
    "eval_global_batch_size": "--eval-iters 1", "skip_train": "--eval-iters 1",
    "full_validation": "--eval-iters 1",
    "loss_average": "--eod-mask-loss",
}  # fmt: skip

# Seen by tests of their own: what is read here, or what else shows it.
ELSEWHERE = {
    **dict.fromkeys(["data_path", "data_cache_path"], "tests/data/test_datasets.py"),
    "num_workers": "tests/train/runs.py",
    **dict.fromkeys(
        ["save", "save_optim", "save_rng", "load",
         "ckpt_step", "finetune", "load_optim", "load_rng", "exit_on_missing_checkpoint",
         "override_opt_param_scheduler", "use_checkpoint_opt_param_scheduler"],
        "tests/train/test_resume.py",
    ),
    "use_checkpoint_args": "tests/test_cli.py",
    **dict.fromkeys(["tokenizer_type", "vocab_file", "merge_file"], "tests/test_command_lines.py"),
    **dict.fromkeys(
        ["train_samples", "nan_policy", "exit_signal_handler", "save_interval",
         "save_retain_interval", "timing_log_level", "deterministic_mode",
         "check_for_nan_in_loss_and_grad"],
        "tests/train/test_loop.py",
    ),
    **dict.fromkeys(
        ["lr_decay_samples", "lr_warmup_samples", "lr_wsd_decay_samples"],
        "tests/optim/test_schedule.py",
    ),
    **dict.fromkeys(["decrease_batch_size_if_needed"], "tests/optim/test_batches.py"),
    **dict.fromkeys(["eval_micro_batch_size"], "tests/train/test_plan.py"),
    **dict.fromkeys(
        ["recompute_granularity", "recompute_method", "recompute_num_layers"],
        "tests/memory/test_recompute.py",
    ),
    **dict.fromkeys(
        ["distributed_backend", "distributed_timeout_minutes", "num_threads"],
        "tests/comm/test_launch.py",
    ),
    "cpu_malloc_tuning": "tests/comm/test_guard.py",
    **dict.fromkeys(["overlap_grad_reduce", "ddp_bucket_size"], "tests/train/test_step.py"),
    **dict.fromkeys(
        ["tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size",
         "expert_model_parallel_size"],
        "tests/config/test_rules.py",
    ),
    **dict.fromkeys(
        ["log_interval", "log_throughput", "live_display", "log_jsonl", "tensorboard_dir",
         "tensorboard_log_interval", "wandb_project", "wandb_exp_name", "wandb_entity",
         "wandb_save_dir", "wandb_mode"],
        "tests/train/test_log.py",
    ),
    "peak_tflops": "tests/train/test_metrics.py",
}  # fmt: skip


def test_every_setting_of_a_run_is_flipped_somewhere() -> None:
    ours = {name for _, group in groups_of(RunConfig) for name in settings_of(group)}
    assert ours == MODEL.keys() | TRAINING.keys() | ELSEWHERE.keys()
    assert {f.name for f in dataclasses.fields(ModelConfig)} == MODEL.keys()
    root = PACKAGE.parent
    for name, file in ELSEWHERE.items():
        text = (root / file).read_text(encoding="utf-8")
        assert (
            name in text
            or "--" + name.replace("_", "-") in text
            or ("--no-" + name.replace("_", "-") in text)
        ), f"{file} never names {name}"


BASE = ["--attention-dropout", "0.1", "--split", "60,30,10"]


class Runs:
    """Records of short runs by their settings, so that each is run once."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._data = folder, corpus(folder, documents=40)
        self._found: dict[str, list[dict[str, Any]]] = {}

    def records(self, words: str) -> list[dict[str, Any]]:
        """All that a run with these settings records, but for its times."""
        if words not in self._found:
            path = self._folder / f"{len(self._found)}.jsonl"
            data = [] if "--mock-data" in words else ["--data-path", self._data]
            found = train_alone(*BASE, *data, *shlex.split(words), "--log-jsonl", str(path))
            self._found[words] = [record | {"seconds": None} for record in found]
        return self._found[words]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs(tmp_path_factory.mktemp("runs"))


@pytest.mark.parametrize("name", [*MODEL, *TRAINING])
def test_flipped_setting_changes_the_run(name: str, runs: Runs) -> None:
    changed = (MODEL | TRAINING)[name]
    if name in ("padded_vocab_size", "make_vocab_size_divisible_by", "pad_vocab_size"):
        assert _model(COMPANIONS.get(name, "")) != _model(changed)
        return
    if name == "gradient_accumulation_steps":
        with pytest.raises(MegalithError, match="is a global batch of 6"):
            runs.records(changed)
        return
    assert runs.records(changed) != runs.records(COMPANIONS.get(name, ""))


def _model(words: str) -> ModelConfig:
    config = load_run([*SMALL, *BASE, "--mock-data", *words.split()], "gpt", 1).config
    return resolve_vocabulary(config, 257).model

"""Which given settings a run will never read, because of other settings."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from megalith.config.files import flatten
from megalith.config.parser import Given, all_settings
from megalith.config.schema import RunConfig
from megalith.config.values import flag


@dataclass(frozen=True)
class Idle:
    """Settings (names separated by blanks) that go unread when `when` holds, and why."""

    names: str
    when: Callable[[RunConfig], bool]
    because: str


def without_effect(config: RunConfig, given: Mapping[str, Given]) -> list[str]:
    """A line for each given setting, not at its default, that this run never reads.

    Settings of a preset are not the user's words and are not listed.
    """
    settings, values = all_settings(RunConfig), flatten(config)
    return [
        f"{flag(name)} has no effect: {row.because.format(**values)}"
        for row in IDLE
        for name in row.names.split()
        if name in given
        and "presets" not in given[name].source
        and given[name].value != settings[name].default
        and row.when(config)
    ]


def _rotary(config: RunConfig) -> bool:
    return config.model.position_embedding_type == "rope"


def _half_precision(config: RunConfig) -> bool:
    return config.precision.fp16 or config.precision.params_dtype == "float16"


def _scale_is_dynamic(config: RunConfig) -> bool:
    return _half_precision(config) and config.precision.loss_scale is None


def _warms_up(config: RunConfig) -> bool:
    o = config.optimizer
    return bool(o.lr_warmup_iters or o.lr_warmup_samples or o.lr_warmup_fraction)


def _evaluates(config: RunConfig) -> bool:
    return config.training.eval_iters > 0 or config.training.full_validation


IDLE = (
    Idle(
        "rotary_base rotary_percent rotary_interleaved rotary_seq_len_interpolation_factor "
        "use_rope_scaling rope_scaling_factor",
        lambda c: not _rotary(c),
        "--position-embedding-type is {position_embedding_type}",
    ),
    Idle(
        "rope_scaling_factor",
        lambda c: _rotary(c) and not c.model.use_rope_scaling,
        "--use-rope-scaling is off",
    ),
    Idle(
        "num_query_groups",
        lambda c: (
            not c.model.group_query_attention
            and c.model.num_query_groups != c.model.num_attention_heads
        ),
        "--group-query-attention is off, so each query head has its own keys and values",
    ),
    Idle(
        "bias_gelu_fusion",
        lambda c: c.model.swiglu or c.model.squared_relu or c.model.quick_geglu,
        "the MLP has no GELU",
    ),
    Idle(
        "gated_linear_unit",
        lambda c: c.model.swiglu or c.model.quick_geglu,
        "--swiglu and --quick-geglu are gated already",
    ),
    Idle(
        "make_vocab_size_divisible_by",
        lambda c: not c.model.pad_vocab_size,
        "--no-pad-vocab-size switches padding off",
    ),
    Idle("apply_wd_to_qk_layernorm", lambda c: not c.model.qk_layernorm, "--qk-layernorm is off"),
    Idle(
        "loss_scale initial_loss_scale min_loss_scale loss_scale_window hysteresis",
        lambda c: not _half_precision(c),
        "only --fp16 scales the loss",
    ),
    Idle(
        "initial_loss_scale min_loss_scale loss_scale_window hysteresis",
        lambda c: _half_precision(c) and not _scale_is_dynamic(c),
        "--loss-scale {loss_scale} is fixed",
    ),
    Idle(
        "min_lr", lambda c: c.optimizer.lr_decay_style == "constant", "--lr-decay-style is constant"
    ),
    Idle(
        "lr_wsd_decay_style lr_wsd_decay_iters lr_wsd_decay_samples",
        lambda c: c.optimizer.lr_decay_style != "WSD",
        "--lr-decay-style is {lr_decay_style}, not WSD",
    ),
    Idle("lr_warmup_init", lambda c: not _warms_up(c), "there is no warm-up"),
    Idle(
        "decoupled_min_lr",
        lambda c: c.optimizer.decoupled_lr is None,
        "--decoupled-lr is not given",
    ),
    Idle(
        "adam_beta1 adam_beta2 adam_eps",
        lambda c: c.optimizer.optimizer != "adam",
        "--optimizer is {optimizer}",
    ),
    Idle("sgd_momentum", lambda c: c.optimizer.optimizer != "sgd", "--optimizer is {optimizer}"),
    Idle(
        "ckpt_step finetune load_optim load_rng exit_on_missing_checkpoint "
        "override_opt_param_scheduler use_checkpoint_opt_param_scheduler",
        lambda c: not c.checkpoint.load,
        "nothing is loaded without --load",
    ),
    Idle(
        "load_optim load_rng",
        lambda c: bool(c.checkpoint.load) and c.checkpoint.finetune,
        "--finetune loads weights only",
    ),
    Idle(
        "save_interval save_retain_interval save_optim save_rng",
        lambda c: not c.checkpoint.save,
        "nothing is saved without --save",
    ),
    Idle(
        "eval_interval start_eval_at_iter eval_global_batch_size eval_micro_batch_size",
        lambda c: not _evaluates(c),
        "--eval-iters 0 switches evaluation off",
    ),
    Idle(
        "start_eval_at_iter",
        lambda c: _evaluates(c) and c.training.eval_interval is None,
        "there is no --eval-interval, so evaluation comes only at the end",
    ),
    Idle(
        "lr_warmup_iters lr_warmup_samples lr_warmup_fraction exit_interval save_interval "
        "iterations_to_skip rampup_batch_size step_batch_size_schedule",
        lambda c: c.training.skip_train,
        "--skip-train only evaluates",
    ),
    Idle(
        "nan_policy",
        lambda c: not c.training.check_for_nan_in_loss_and_grad,
        "--no-check-for-nan-in-loss-and-grad does not look for NaN",
    ),
    Idle(
        "recompute_granularity",
        lambda c: c.training.recompute_granularity == "selective",
        "attention always recomputes its weights",
    ),
    Idle(
        "recompute_method recompute_num_layers",
        lambda c: c.training.recompute_granularity != "full",
        "--recompute-granularity is {recompute_granularity}, not full",
    ),
    Idle(
        "data_path split data_cache_path", lambda c: c.data.mock_data, "--mock-data makes its own"
    ),
    Idle(
        "vocab_file merge_file",
        lambda c: c.tokenizer.tokenizer_type == "ByteLevelTokenizer",
        "--tokenizer-type is ByteLevelTokenizer",
    ),
    Idle(
        "tensorboard_log_interval",
        lambda c: not c.logging.tensorboard_dir,
        "there is no --tensorboard-dir",
    ),
    Idle(
        "wandb_exp_name wandb_entity wandb_save_dir wandb_mode",
        lambda c: not c.logging.wandb_project,
        "there is no --wandb-project",
    ),
)

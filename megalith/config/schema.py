"""Every setting of a run, declared once.

A setting is a dataclass field; its name is the flag's (`hidden_size` is `--hidden-size`), its
metadata hold help, unit, choices and other spellings. Flags, YAML keys, `--help` and the settings
page are made from these fields. Names and defaults are Megatron-LM's unless the help says `ours`.

A field typed `int` whose default is None is filled by `rules.resolve`; one typed `int | None` may
stay None, which then has a meaning of its own.
"""

import dataclasses
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from megalith.errors import MegalithError


def setting(
    default: Any,
    help: str,
    *,
    unit: str = "",
    choices: tuple[str, ...] = (),
    former: tuple[str, ...] = (),
    negative: tuple[str, ...] = (),
) -> Any:
    """A field with its description.

    `former` are other flags that mean the same, `negative` are other flags that switch a boolean
    off (besides `--no-<name>`).
    """
    about = {"help": help, "unit": unit, "choices": choices}
    return field(default=default, metadata=about | {"former": former, "negative": negative})


@dataclass(frozen=True)
class ModelConfig:
    """Model"""

    num_layers: int = setting(None, "Transformer layers")
    hidden_size: int = setting(None, "width of the model")
    ffn_hidden_size: int = setting(
        None, "width of the MLP; default 4 x hidden, or 8/3 x hidden in steps of 64 with --swiglu"
    )
    num_attention_heads: int = setting(None, "query heads")
    group_query_attention: bool = setting(False, "several query heads share one key/value head")
    num_query_groups: int = setting(None, "key/value heads with --group-query-attention; default 1")
    kv_channels: int = setting(None, "size of a head; default hidden / heads")
    seq_length: int = setting(None, "length of a sample", unit="tokens")
    max_position_embeddings: int = setting(
        None, "longest position, rows of the learned table; default --seq-length", unit="tokens"
    )
    position_embedding_type: str = setting(
        "learned_absolute",
        "how a token knows its place",
        choices=("learned_absolute", "rope", "none"),
    )
    rotary_base: float = setting(10000.0, "base of the rotary frequencies")
    rotary_percent: float = setting(1.0, "share of a head that is rotated")
    rotary_interleaved: bool = setting(False, "rotate neighbouring pairs, not the two halves")
    rotary_seq_len_interpolation_factor: float | None = setting(
        None, "divide rotary positions by this"
    )
    use_rope_scaling: bool = setting(False, "stretch low rotary frequencies as Llama 3.1 does")
    rope_scaling_factor: float = setting(8.0, "factor of --use-rope-scaling")
    normalization: str = setting("LayerNorm", "kind of norm", choices=("LayerNorm", "RMSNorm"))
    norm_epsilon: float = setting(
        1e-5, "added under the norm's root", former=("--layernorm-epsilon",)
    )
    apply_layernorm_1p: bool = setting(False, "store a norm's gain minus one")
    swiglu: bool = setting(False, "MLP gated by SiLU")
    squared_relu: bool = setting(False, "MLP with squared ReLU")
    quick_geglu: bool = setting(False, "MLP gated by x sigmoid(1.702 x)")
    gated_linear_unit: bool = setting(False, "ours: gate the GELU or the squared ReLU")
    bias_gelu_fusion: bool = setting(True, "tanh form of GELU; off means the exact (erf) form")
    add_bias_linear: bool = setting(
        True, "biases in linear layers", negative=("--disable-bias-linear",)
    )
    add_qkv_bias: bool = setting(False, "bias in the query/key/value projection")
    qk_layernorm: bool = setting(False, "norm of queries and keys, per head")
    window_size: int | None = setting(
        None, "attend to this many earlier tokens only (also written W,0)", unit="tokens"
    )
    untie_embeddings_and_output_weights: bool = setting(False, "an output matrix of its own")
    hidden_dropout: float = setting(0.1, "dropout after the embedding and on both branches")
    attention_dropout: float = setting(0.1, "dropout of attention probabilities")
    init_method_std: float = setting(0.02, "standard deviation of the initial weights")
    embedding_init_method_std: float = setting(
        None, "the same for the embeddings; default --init-method-std"
    )
    init_method_xavier_uniform: bool = setting(False, "initial weights by Glorot's uniform law")
    scaled_init_method: bool = setting(
        True, "ours: divide the initial std of output projections by sqrt(2 x layers)"
    )
    vocab_size: int = setting(
        None, "entries of the vocabulary; default the tokenizer's", unit="tokens"
    )
    padded_vocab_size: int = setting(
        None, "rows of the embedding; default --vocab-size rounded up", unit="tokens"
    )
    make_vocab_size_divisible_by: int = setting(
        128, "the embedding's rows are a multiple of this x tensor parallel size", unit="tokens"
    )
    pad_vocab_size: bool = setting(
        True, "round the embedding's rows up", negative=("--disable-pad-vocab-size",)
    )


@dataclass(frozen=True)
class ParallelConfig:
    """Parallelism and processes"""

    tensor_model_parallel_size: int = setting(
        1, "ranks that share each layer", unit="ranks", former=("--model-parallel-size",)
    )
    pipeline_model_parallel_size: int = setting(1, "stages of consecutive layers", unit="ranks")
    context_parallel_size: int = setting(1, "ranks that share one sequence", unit="ranks")
    expert_model_parallel_size: int = setting(1, "ranks that share the experts", unit="ranks")
    distributed_backend: str | None = setting(
        None, "transport between ranks; default by device", choices=("nccl", "gloo")
    )
    distributed_timeout_minutes: int = setting(10, "wait for a silent rank", unit="minutes")
    overlap_grad_reduce: bool = setting(True, "reduce gradients while backward goes on")
    ddp_bucket_size: int = setting(40_000_000, "size of a gradient bucket", unit="parameters")
    num_threads: int | None = setting(
        None, "ours: CPU threads of a rank; default cores / ranks here", unit="threads"
    )
    cpu_malloc_tuning: bool = setting(
        True, "ours: keep large CPU buffers instead of returning them to the system"
    )


@dataclass(frozen=True)
class PrecisionConfig:
    """Precision"""

    fp16: bool = setting(False, "compute in float16 with a loss scale")
    bf16: bool = setting(False, "compute in bfloat16")
    params_dtype: str = setting(
        None,
        "ours: type of the weights; default by --bf16 and --fp16, else float32",
        choices=("float32", "bfloat16", "float16", "float64"),
    )
    loss_scale: float | None = setting(None, "fixed loss scale; default dynamic (float16 only)")
    initial_loss_scale: float = setting(2.0**32, "first dynamic loss scale")
    min_loss_scale: float = setting(1.0, "smallest dynamic loss scale", former=("--min-scale",))
    loss_scale_window: int = setting(
        1000, "clean steps before the loss scale doubles", unit="iterations"
    )
    hysteresis: int = setting(2, "overflows before the loss scale halves", unit="iterations")


@dataclass(frozen=True)
class OptimizerConfig:
    """Optimizer and schedules"""

    optimizer: str = setting("adam", "adam is AdamW", choices=("adam", "sgd"))
    lr: float = setting(None, "largest learning rate")
    min_lr: float = setting(0.0, "smallest learning rate after the warm-up")
    lr_decay_style: str = setting(
        "linear",
        "shape of the learning rate",
        choices=("constant", "linear", "cosine", "inverse-square-root", "WSD"),
    )
    lr_decay_iters: int | None = setting(
        None, "length of warm-up and decay; default --train-iters", unit="iterations"
    )
    lr_decay_samples: int | None = setting(
        None, "the same in samples; default --train-samples", unit="samples"
    )
    lr_wsd_decay_style: str = setting(
        "exponential",
        "shape of the last part of WSD",
        choices=("exponential", "linear", "cosine", "minus_sqrt"),
    )
    lr_wsd_decay_iters: int | None = setting(None, "length of that part", unit="iterations")
    lr_wsd_decay_samples: int | None = setting(None, "length of that part", unit="samples")
    lr_warmup_iters: int = setting(0, "length of the warm-up", unit="iterations")
    lr_warmup_samples: int = setting(0, "length of the warm-up", unit="samples")
    lr_warmup_fraction: float | None = setting(
        None, "warm-up as a share of the decay length", former=("--lr-warmup-percent", "--warmup")
    )
    lr_warmup_init: float = setting(0.0, "learning rate at the start of the warm-up")
    decoupled_lr: float | None = setting(None, "--lr of embedding and output layer")
    decoupled_min_lr: float | None = setting(None, "--min-lr of embedding and output layer")
    weight_decay: float = setting(0.01, "decoupled weight decay")
    start_weight_decay: float = setting(
        None, "weight decay at the start; default --weight-decay", former=("--start-wd",)
    )
    end_weight_decay: float = setting(
        None, "weight decay at the end; default --weight-decay", former=("--end-wd",)
    )
    weight_decay_incr_style: str = setting(
        "constant",
        "shape of the way between the two",
        choices=("constant", "linear", "cosine"),
        former=("--wd-incr-style",),
    )
    apply_wd_to_qk_layernorm: bool = setting(False, "decay the gains of --qk-layernorm too")
    clip_grad: float = setting(1.0, "largest norm of the whole gradient; 0 does not clip")
    adam_beta1: float = setting(0.9, "Adam's average of gradients")
    adam_beta2: float = setting(0.999, "Adam's average of squares")
    adam_eps: float = setting(1e-8, "Adam's epsilon")
    sgd_momentum: float = setting(0.9, "momentum of sgd")
    override_opt_param_scheduler: bool = setting(
        False,
        "on resume take the schedule given now, not the checkpoint's",
        former=("--override-lr-scheduler",),
    )
    use_checkpoint_opt_param_scheduler: bool = setting(
        False,
        "on resume take the checkpoint's schedule, whatever is given now",
        former=("--use-checkpoint-lr-scheduler",),
    )


@dataclass(frozen=True)
class TrainingConfig:
    """Training"""

    micro_batch_size: int = setting(
        None,
        "sequences in one forward pass of a replica",
        unit="sequences",
        former=("--batch-size",),
    )
    global_batch_size: int = setting(
        None, "sequences in a step; default --micro-batch-size x replicas", unit="sequences"
    )
    gradient_accumulation_steps: int | None = setting(
        None, "microbatches of a replica in a step: sets --global-batch-size"
    )
    rampup_batch_size: tuple[int, ...] | None = setting(
        None, "START INCREMENT SAMPLES: grow the global batch to --global-batch-size"
    )
    step_batch_size_schedule: str | None = setting(
        None, "'TOKENS:BATCH ...': global batch by tokens seen (suffixes K M B T)"
    )
    decrease_batch_size_if_needed: bool = setting(
        False, "round the global batch down to what the replicas divide"
    )
    train_iters: int | None = setting(None, "steps to train", unit="iterations")
    train_samples: int | None = setting(None, "samples to train on", unit="samples")
    skip_train: bool = setting(False, "only evaluate")
    iterations_to_skip: tuple[int, ...] = setting(
        (), "pass over the data of these iterations, counted from 0"
    )
    seed: int = setting(1234, "seed of initial weights, data order and dropout")
    eval_interval: int | None = setting(None, "steps between evaluations", unit="iterations")
    eval_iters: int = setting(100, "steps of one evaluation; 0 turns it off", unit="iterations")
    start_eval_at_iter: int | None = setting(None, "no evaluation before", unit="iterations")
    eval_global_batch_size: int = setting(
        None, "--global-batch-size of evaluation", unit="sequences"
    )
    eval_micro_batch_size: int = setting(None, "--micro-batch-size of evaluation", unit="sequences")
    full_validation: bool = setting(False, "evaluate the whole validation split each time")
    exit_interval: int | None = setting(
        None, "stop after an iteration that this divides", unit="iterations"
    )
    exit_duration_in_mins: float | None = setting(None, "stop after this time", unit="minutes")
    exit_signal_handler: bool = setting(True, "save and stop on SIGTERM and SIGUSR1")
    recompute_granularity: str | None = setting(
        None,
        "recompute in backward: full is whole layers; selective, attention, is always done",
        choices=("full", "selective"),
    )
    recompute_method: str | None = setting(
        None,
        "full recompute of even chunks, or of the first layers",
        choices=("uniform", "block"),
    )
    recompute_num_layers: int | None = setting(
        None, "layers of a chunk (uniform) or recomputed at all (block); default 1", unit="layers"
    )
    loss_average: str = setting(
        "global",
        "ours: mean over the tokens of the global batch, or Megatron-LM's mean of means",
        choices=("global", "microbatch"),
    )
    check_for_nan_in_loss_and_grad: bool = setting(True, "look for NaN and Inf in each step")
    nan_policy: str = setting(
        "stop", "ours: at NaN or Inf stop, or skip the step", choices=("stop", "skip")
    )
    deterministic_mode: bool = setting(False, "bit for bit repeatable kernels")


@dataclass(frozen=True)
class DataConfig:
    """Data"""

    data_path: tuple[str, ...] = setting((), "prefix of a .bin/.idx pair", unit="path")
    split: str = setting(None, "shares of train, valid and test; default 969,30,1")
    mock_data: bool = setting(False, "made-up tokens instead of a corpus")
    data_cache_path: str | None = setting(None, "folder for index caches", unit="path")
    num_workers: int = setting(2, "loader threads; 0 loads in the main thread", unit="threads")
    dataloader_type: str = setting(
        "single", "one pass, or shuffled anew each epoch", choices=("single", "cyclic")
    )
    eod_mask_loss: bool = setting(False, "no loss where the input is the end of a document")
    reset_position_ids: bool = setting(False, "positions start anew after each document")
    reset_attention_mask: bool = setting(False, "no attention across documents")


@dataclass(frozen=True)
class TokenizerConfig:
    """Tokenizer"""

    tokenizer_type: str = setting(
        None,
        "default GPT2BPETokenizer if both of its files are given, else ByteLevelTokenizer",
        choices=("ByteLevelTokenizer", "GPT2BPETokenizer"),
    )
    vocab_file: str | None = setting(
        None, "GPT-2 vocabulary (JSON)", unit="path", former=("--vocab",)
    )
    merge_file: str | None = setting(None, "GPT-2 merges", unit="path")


@dataclass(frozen=True)
class CheckpointConfig:
    """Checkpoints"""

    save: str | None = setting(None, "folder to save to", unit="path")
    save_interval: int | None = setting(
        None,
        "steps between checkpoints; default only at the end",
        unit="iterations",
        former=("--persistent-save-interval",),
    )
    save_retain_interval: int | None = setting(
        None, "of older checkpoints keep multiples of this", unit="iterations"
    )
    save_optim: bool = setting(True, "save the optimizer")
    save_rng: bool = setting(True, "save the seed, which all randomness comes from")
    load: str | None = setting(None, "folder to load from", unit="path")
    ckpt_step: int | None = setting(None, "load this step, not the latest", unit="iterations")
    finetune: bool = setting(False, "load weights only and start at iteration 0")
    load_optim: bool = setting(True, "load the optimizer")
    load_rng: bool = setting(True, "go on only with the seed that was saved")
    use_checkpoint_args: bool = setting(False, "take the model's settings from the checkpoint")
    exit_on_missing_checkpoint: bool = setting(
        False, "an error, not a fresh start, when --load (equal to --save) is empty"
    )


@dataclass(frozen=True)
class LoggingConfig:
    """Logging"""

    log_interval: int = setting(100, "steps between log lines", unit="iterations")
    log_throughput: bool = setting(False, "TFLOP/s per processor in the log line")
    log_params_norm: bool = setting(False, "norm of the weights in the log line")
    log_num_zeros_in_grad: bool = setting(False, "zeros of the gradient in the log line")
    timing_log_level: int = setting(0, "0: steps, 1: their phases, 2: microbatches too")
    live_display: str = setting(
        "auto", "ours: live display on a terminal", choices=("auto", "on", "off")
    )
    peak_tflops: float | None = setting(
        None, "ours: peak of one processor for MFU; default measured or known", unit="TFLOP/s"
    )
    log_jsonl: str | None = setting(None, "ours: file with one JSON line a step", unit="path")
    tensorboard_dir: str | None = setting(None, "folder for TensorBoard", unit="path")
    tensorboard_log_interval: int = setting(1, "steps between points", unit="iterations")
    wandb_project: str | None = setting(None, "project at Weights & Biases")
    wandb_exp_name: str | None = setting(None, "name of the run there")
    wandb_entity: str | None = setting(None, "team or user there")
    wandb_save_dir: str | None = setting(None, "local folder of its files", unit="path")
    wandb_mode: str = setting(
        "online", "ours: send at once, or only write locally", choices=("online", "offline")
    )


@dataclass(frozen=True)
class RunConfig:
    """All of a training run."""

    model_family: str = "gpt"
    preset: str | None = None
    model: ModelConfig = ModelConfig()
    parallel: ParallelConfig = ParallelConfig()
    precision: PrecisionConfig = PrecisionConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    training: TrainingConfig = TrainingConfig()
    data: DataConfig = DataConfig()
    tokenizer: TokenizerConfig = TokenizerConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()


@dataclass(frozen=True)
class PrepareConfig:
    """Preparation of a corpus"""

    input: str = setting(None, "corpus: .jsonl or .txt", unit="path")
    output_prefix: str = setting(None, "output files without _text_document.bin", unit="path")
    json_keys: tuple[str, ...] = setting(("text",), "fields of a JSON line, one output each")
    append_eod: bool = setting(False, "end each document with the end-of-document token")
    workers: int = setting(1, "processes that tokenise", unit="processes")
    log_interval: int = setting(1000, "documents between progress lines", unit="documents")
    tokenizer: TokenizerConfig = TokenizerConfig()


@dataclass(frozen=True)
class GenerateConfig:
    """Text generation"""

    load: str = setting(None, "folder of checkpoints", unit="path")
    ckpt_step: int | None = setting(None, "use this step, not the latest", unit="iterations")
    prompt: tuple[str, ...] = setting((), "texts to continue", former=("--prompts",))
    num_tokens: int = setting(
        100, "length of a continuation", unit="tokens", former=("--num-tokens-to-generate",)
    )
    num_samples: int = setting(1, "continuations of each prompt")
    greedy: bool = setting(False, "always the likeliest token")
    temperature: float = setting(1.0, "divides the logits: below 1 is bolder, above 1 wilder")
    top_k: int = setting(0, "only the likeliest k tokens; 0 takes all", unit="tokens")
    top_p: float = setting(0.0, "only the likeliest tokens up to this probability; 0 takes all")
    seed: int = setting(1234, "seed of sampling")


def settings_of(group: type) -> dict[str, dataclasses.Field[Any]]:
    """The settings that a dataclass declares itself, by name."""
    return {f.name: f for f in dataclasses.fields(group) if "help" in f.metadata}


def groups_of(config_class: type) -> Iterator[tuple[str, type]]:
    """Attribute name and class of each group; the class itself comes first, as ""."""
    if settings_of(config_class):
        yield "", config_class
    for member in dataclasses.fields(config_class):
        if dataclasses.is_dataclass(member.type) and isinstance(member.type, type):
            yield member.name, member.type


def base_type(declared: Any) -> Any:
    """`int` for `int` and `int | None`, `tuple[str, ...]` for itself."""
    if isinstance(declared, types.UnionType):
        return next(part for part in typing.get_args(declared) if part is not type(None))
    return declared


def to_dict(config: Any) -> dict[str, Any]:
    """Nested JSON-ready dictionary of a config; tuples become lists."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_dict(value)
    return list(value) if isinstance(value, tuple) else value


def from_dict(config_class: type, values: Mapping[str, Any]) -> Any:
    """The config that `to_dict` gave `values` for; unknown keys raise MegalithError."""
    members = {f.name: f for f in dataclasses.fields(config_class)}
    unknown = sorted(values.keys() - members.keys())
    if unknown:
        raise MegalithError(
            f"the stored {config_class.__name__} has settings that this version does not know: "
            f"{', '.join(unknown)}. It was written by another version: use that, or remove them."
        )
    return config_class(**{name: _restored(members[name].type, v) for name, v in values.items()})


def _restored(declared: Any, value: Any) -> Any:
    if dataclasses.is_dataclass(declared) and isinstance(declared, type):
        return from_dict(declared, value)
    return tuple(value) if isinstance(value, list) else value

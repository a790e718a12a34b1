"""Values that follow from other settings."""

from dataclasses import replace
from typing import TypeVar

from megalith.config.schema import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
    TokenizerConfig,
    TrainingConfig,
)

T = TypeVar("T")


def derive(config: RunConfig, world_size: int) -> RunConfig:
    """Fill in what follows, where its basis is there. Deriving twice is deriving once."""
    return replace(
        config,
        model=derive_model(config.model),
        precision=derive_precision(config.precision),
        optimizer=derive_optimizer(config.optimizer, config.training),
        training=derive_training(config.training, replicas(config.parallel, world_size)),
        data=derive_data(config.data),
        tokenizer=derive_tokenizer(config.tokenizer),
    )


def replicas(parallel: ParallelConfig, world_size: int) -> int:
    """Data-parallel size: ranks over the ranks that share one replica, at least 1."""
    p = parallel
    share = p.tensor_model_parallel_size * p.pipeline_model_parallel_size * p.context_parallel_size
    return max(world_size // max(share, 1), 1)


def otherwise(value: T | None, default: T) -> T:
    """`value`, or `default` where it is None."""
    return default if value is None else value


def derive_model(m: ModelConfig) -> ModelConfig:
    """Sizes of MLP, heads, key/value groups and positions."""
    if not m.hidden_size or not m.num_attention_heads:
        return m
    groups = otherwise(m.num_query_groups, 1) if m.group_query_attention else m.num_attention_heads
    return replace(
        m,
        ffn_hidden_size=otherwise(m.ffn_hidden_size, _ffn_hidden_size(m)),
        kv_channels=otherwise(m.kv_channels, m.hidden_size // m.num_attention_heads),
        num_query_groups=groups,
        max_position_embeddings=otherwise(m.max_position_embeddings, m.seq_length),
        embedding_init_method_std=otherwise(m.embedding_init_method_std, m.init_method_std),
    )


def _ffn_hidden_size(m: ModelConfig) -> int:
    return int(4 * m.hidden_size * 2 / 3 / 64) * 64 if m.swiglu else 4 * m.hidden_size


def derive_precision(p: PrecisionConfig) -> PrecisionConfig:
    """One type of weights, and the two switches in agreement with it."""
    chosen = "bfloat16" if p.bf16 else "float16" if p.fp16 else "float32"
    dtype = otherwise(p.params_dtype, chosen)
    return replace(
        p,
        params_dtype=dtype,
        bf16=p.bf16 or dtype == "bfloat16",
        fp16=p.fp16 or dtype == "float16",
    )


def derive_optimizer(o: OptimizerConfig, t: TrainingConfig) -> OptimizerConfig:
    """Ends of the schedules."""
    return replace(
        o,
        lr_decay_iters=otherwise(o.lr_decay_iters, t.train_iters),
        lr_decay_samples=otherwise(o.lr_decay_samples, t.train_samples),
        start_weight_decay=otherwise(o.start_weight_decay, o.weight_decay),
        end_weight_decay=otherwise(o.end_weight_decay, o.weight_decay),
        decoupled_min_lr=(
            otherwise(o.decoupled_min_lr, o.min_lr)
            if o.decoupled_lr is not None
            else o.decoupled_min_lr
        ),
    )


def derive_training(t: TrainingConfig, data_parallel: int) -> TrainingConfig:
    """Batch sizes and recompute. Accumulation steps are folded into the global batch size."""
    if t.micro_batch_size is None:
        return t
    steps = otherwise(t.gradient_accumulation_steps, 1)
    batch = otherwise(t.global_batch_size, steps * t.micro_batch_size * data_parallel)
    folds = batch == steps * t.micro_batch_size * data_parallel
    full = t.recompute_granularity == "full"
    return replace(
        t,
        global_batch_size=batch,
        gradient_accumulation_steps=None if folds else t.gradient_accumulation_steps,
        eval_global_batch_size=otherwise(t.eval_global_batch_size, batch),
        eval_micro_batch_size=otherwise(t.eval_micro_batch_size, t.micro_batch_size),
        recompute_method=otherwise(t.recompute_method, "uniform") if full else t.recompute_method,
        recompute_num_layers=(
            otherwise(t.recompute_num_layers, 1) if full else t.recompute_num_layers
        ),
    )


def derive_data(d: DataConfig) -> DataConfig:
    """Shares of the splits."""
    return replace(d, split=otherwise(d.split, "1,1,1" if d.mock_data else "969,30,1"))


def derive_tokenizer(t: TokenizerConfig) -> TokenizerConfig:
    """GPT-2's tokenizer where its files are named."""
    found = "GPT2BPETokenizer" if t.vocab_file or t.merge_file else "ByteLevelTokenizer"
    return replace(t, tokenizer_type=otherwise(t.tokenizer_type, found))

"""Rules between settings. Each is a small function that yields what is wrong, and the way out."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from megalith.config.batches import batch_schedule, rampup_batches, split_shares
from megalith.config.derive import derive, otherwise, replicas
from megalith.config.files import flatten
from megalith.config.schema import RunConfig
from megalith.config.values import flag
from megalith.errors import MegalithError

Problems = Iterator[str]
Rule = Callable[[RunConfig, int], Problems]


def resolve(config: RunConfig, world_size: int) -> RunConfig:
    """The run with every derived value for `world_size` ranks.

    Only `vocab_size` and `padded_vocab_size` may stay None, for `resolve_vocabulary`. Raises one
    MegalithError that lists every broken rule.
    """
    raise_all(problems_of(config, world_size))
    return derive(config, world_size)


def problems_of(config: RunConfig, world_size: int) -> list[str]:
    """Every broken rule; rules that compute with sizes are asked only where those are sound."""
    derived = derive(config, world_size)
    basic = [problem for rule in BASIC_RULES for problem in rule(derived, world_size)]
    rules = PLAIN_RULES if basic else PLAIN_RULES + COMPUTING_RULES
    return basic + [problem for rule in rules for problem in rule(derived, world_size)]


def raise_all(problems: Sequence[str]) -> None:
    """Raise one MegalithError for all problems, if there are any."""
    if len(problems) == 1:
        raise MegalithError(problems[0])
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise MegalithError(f"{len(problems)} problems with the settings:{lines}")


def resolve_vocabulary(config: RunConfig, tokenizer_vocab_size: int) -> RunConfig:
    """The run with both sizes of the vocabulary; raises MegalithError where they do not fit."""
    m, tensor = config.model, config.parallel.tensor_model_parallel_size
    size = otherwise(m.vocab_size, tokenizer_vocab_size)
    if size < tokenizer_vocab_size:
        raise MegalithError(
            f"--vocab-size {size} is smaller than the tokenizer's {tokenizer_vocab_size} tokens, "
            f"which would have no embedding: give --vocab-size {tokenizer_vocab_size}"
        )
    step = m.make_vocab_size_divisible_by * tensor if m.pad_vocab_size else 1
    padded = otherwise(m.padded_vocab_size, -(-size // step) * step)
    if padded < size or padded % tensor:
        raise MegalithError(
            f"--padded-vocab-size {padded} must be at least the vocabulary of {size} and a "
            f"multiple of --tensor-model-parallel-size {tensor}: leave it out to have it computed"
        )
    return replace(config, model=replace(m, vocab_size=size, padded_vocab_size=padded))


# Basic rules: what the others compute with is there, and positive.


def required_are_given(c: RunConfig, world: int) -> Problems:
    values = flatten(c)
    names = ["num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size"]
    names += [] if c.training.skip_train else ["lr"]
    for name in names:
        if values[name] is None:
            model = name not in ("micro_batch_size", "lr")
            hint = " (or name a model with --preset)" if model else ""
            yield f"{flag(name)} is missing: give it{hint}"


def sizes_are_positive(c: RunConfig, world: int) -> Problems:
    values = flatten(c)
    for name in POSITIVE.split():
        if values[name] is not None and not values[name] > 0:
            yield f"{flag(name)} {values[name]:g} must be above 0"


POSITIVE = """num_layers hidden_size ffn_hidden_size num_attention_heads num_query_groups
    kv_channels seq_length max_position_embeddings rotary_base rotary_percent
    rope_scaling_factor norm_epsilon rotary_seq_len_interpolation_factor window_size
    init_method_std embedding_init_method_std vocab_size padded_vocab_size
    make_vocab_size_divisible_by tensor_model_parallel_size
    pipeline_model_parallel_size context_parallel_size expert_model_parallel_size ddp_bucket_size
    distributed_timeout_minutes num_threads loss_scale initial_loss_scale min_loss_scale
    loss_scale_window hysteresis lr_decay_iters lr_decay_samples lr_wsd_decay_iters
    lr_wsd_decay_samples adam_eps micro_batch_size global_batch_size gradient_accumulation_steps
    train_iters train_samples eval_interval eval_global_batch_size eval_micro_batch_size
    exit_interval exit_duration_in_mins recompute_num_layers save_interval save_retain_interval
    log_interval peak_tflops tensorboard_log_interval"""


# Plain rules: they compare, but do not divide.


def values_lie_in_range(c: RunConfig, world: int) -> Problems:
    values = flatten(c)
    for names, lowest, highest in RANGES:
        for name in names.split():
            value = values[name]
            if value is not None and not lowest <= value <= highest:
                bound = f"from {lowest:g} to {highest:g}" if highest < ENDLESS else f">= {lowest:g}"
                yield f"{flag(name)} {value:g} must be {bound}"


ENDLESS = float("inf")
BELOW_ONE = 1 - 2**-53
RANGES = (
    ("hidden_dropout attention_dropout adam_beta1 adam_beta2 sgd_momentum", 0, BELOW_ONE),
    ("rotary_percent lr_warmup_fraction", 0, 1),
    ("lr min_lr lr_warmup_init lr_warmup_iters lr_warmup_samples decoupled_lr", 0, ENDLESS),
    ("decoupled_min_lr weight_decay start_weight_decay end_weight_decay clip_grad", 0, ENDLESS),
    ("eval_iters start_eval_at_iter num_workers ckpt_step", 0, ENDLESS),
    ("seed", 0, 2**32 - 1),
    ("timing_log_level", 0, 2),
)


def parallelism_is_there(c: RunConfig, world: int) -> Problems:
    p = c.parallel
    absent = {
        "tensor_model_parallel_size": "tensor",
        "pipeline_model_parallel_size": "pipeline",
        "context_parallel_size": "context",
        "expert_model_parallel_size": "expert",
    }
    for name, kind in absent.items():
        size = getattr(p, name)
        if size > 1:
            yield (
                f"{flag(name)} {size}: {kind} parallelism is not there yet. Give {flag(name)} 1: "
                "all ranks are then replicas (data parallelism), which share the global batch"
            )


def one_kind_of_mlp(c: RunConfig, world: int) -> Problems:
    chosen = [n for n in ("swiglu", "squared_relu", "quick_geglu") if getattr(c.model, n)]
    if len(chosen) > 1:
        yield f"{' and '.join(map(flag, chosen))} exclude each other: keep one"


def one_precision(c: RunConfig, world: int) -> Problems:
    p = c.precision
    if p.fp16 and p.bf16:
        yield "--fp16 and --bf16 (or --params-dtype) exclude each other: keep one"
    expected = {"bfloat16": p.bf16, "float16": p.fp16}.get(p.params_dtype, not (p.bf16 or p.fp16))
    if not expected:
        switch = "--bf16" if p.bf16 else "--fp16"
        yield f"{switch} and --params-dtype {p.params_dtype} contradict each other: keep one"


def length_of_training(c: RunConfig, world: int) -> Problems:
    t = c.training
    if t.train_iters is not None and t.train_samples is not None:
        yield (
            f"--train-iters {t.train_iters} and --train-samples {t.train_samples} both say how "
            "long to train: keep one"
        )
    if t.train_iters is None and t.train_samples is None and not t.skip_train:
        yield "--train-iters or --train-samples is missing: say how long to train"


def one_unit_of_length(c: RunConfig, world: int) -> Problems:
    """Schedules count in the unit that training counts in."""
    t, o = c.training, c.optimizer
    units = {"iters": t.train_iters, "samples": t.train_samples}
    for unit, other in (("iters", "samples"), ("samples", "iters")):
        if units[unit] is None or units[other] is not None:
            continue
        for stem in ("lr_decay", "lr_warmup", "lr_wsd_decay"):
            name = f"{stem}_{other}"
            if getattr(o, name):
                yield (
                    f"{flag(name)} {getattr(o, name)} counts {other} but --train-{unit} counts "
                    f"{unit}: use {flag(f'{stem}_{unit}')}"
                )


def warmup_is_given_once(c: RunConfig, world: int) -> Problems:
    o = c.optimizer
    for name in ("lr_warmup_iters", "lr_warmup_samples"):
        if o.lr_warmup_fraction is not None and getattr(o, name):
            yield (
                f"--lr-warmup-fraction {o.lr_warmup_fraction:g} and {flag(name)} "
                f"{getattr(o, name)} both set the warm-up: keep one"
            )


def schedule_fits(c: RunConfig, world: int) -> Problems:
    """Warm-up ends before the decay does, and so does the last part of WSD begin after it."""
    o = c.optimizer
    for unit in ("iters", "samples"):
        decay = getattr(o, f"lr_decay_{unit}")
        warmup, wsd = getattr(o, f"lr_warmup_{unit}"), getattr(o, f"lr_wsd_decay_{unit}")
        if decay is not None and warmup and warmup >= decay:
            yield (
                f"--lr-warmup-{unit} {warmup} must be below --lr-decay-{unit} {decay} (by default "
                f"--train-{unit}): shorten the warm-up"
            )
        if decay is not None and wsd is not None and wsd > decay:
            yield f"--lr-wsd-decay-{unit} {wsd} exceeds --lr-decay-{unit} {decay}: shorten it"


def wsd_has_an_end(c: RunConfig, world: int) -> Problems:
    o = c.optimizer
    if o.lr_decay_style == "WSD" and not (o.lr_wsd_decay_iters or o.lr_wsd_decay_samples):
        yield (
            "--lr-decay-style WSD needs the length of its last part: give --lr-wsd-decay-iters "
            "(or --lr-wsd-decay-samples with --train-samples)"
        )


def learning_rates_in_order(c: RunConfig, world: int) -> Problems:
    o = c.optimizer
    pairs = (("min_lr", "lr"), ("lr_warmup_init", "lr"), ("decoupled_min_lr", "decoupled_lr"))
    for low, high in pairs:
        lower, upper = getattr(o, low), getattr(o, high)
        if lower is not None and upper is not None and lower > upper:
            yield f"{flag(low)} {lower:g} is above {flag(high)} {upper:g}: lower it"


def weight_decay_has_a_way(c: RunConfig, world: int) -> Problems:
    o = c.optimizer
    if o.weight_decay_incr_style == "constant" and o.start_weight_decay != o.end_weight_decay:
        yield (
            f"--start-weight-decay {o.start_weight_decay:g} and --end-weight-decay "
            f"{o.end_weight_decay:g} differ, but --weight-decay-incr-style is constant: give "
            "linear or cosine"
        )


def one_scheduler_wins(c: RunConfig, world: int) -> Problems:
    o = c.optimizer
    if o.override_opt_param_scheduler and o.use_checkpoint_opt_param_scheduler:
        yield (
            "--override-opt-param-scheduler and --use-checkpoint-opt-param-scheduler contradict "
            "each other: keep one"
        )


def one_batch_schedule(c: RunConfig, world: int) -> Problems:
    t = c.training
    if t.rampup_batch_size is not None and t.step_batch_size_schedule is not None:
        yield (
            "--rampup-batch-size and --step-batch-size-schedule both set the global batch over "
            "time: keep one"
        )


def recompute_is_complete(c: RunConfig, world: int) -> Problems:
    t, layers = c.training, c.model.num_layers
    count = t.recompute_num_layers
    if t.recompute_granularity == "full" and layers and count and count > layers:
        yield f"--recompute-num-layers {count} is more than --num-layers {layers}: lower it"


def checkpoint_is_named(c: RunConfig, world: int) -> Problems:
    k = c.checkpoint
    if k.use_checkpoint_args and not k.load:
        yield "--use-checkpoint-args needs a checkpoint: give --load FOLDER"
    if k.save_retain_interval and not k.save_interval and k.save:
        yield f"--save-retain-interval {k.save_retain_interval} needs --save-interval"


def data_is_named(c: RunConfig, world: int) -> Problems:
    d = c.data
    if not d.data_path and not d.mock_data:
        yield (
            "no data: give --data-path PREFIX (of `megalith data prepare`), or --mock-data to "
            "train on made-up tokens"
        )
    if len(d.data_path) > 1:
        yield (
            f"--data-path {' '.join(d.data_path)}: blends of several corpora are not there yet; "
            "prepare one corpus and name its prefix alone"
        )


def split_is_readable(c: RunConfig, world: int) -> Problems:
    try:
        split_shares(c.data.split)
    except ValueError as error:
        yield f"--split {c.data.split!r} {error}"


def tokenizer_has_its_files(c: RunConfig, world: int) -> Problems:
    t = c.tokenizer
    if t.tokenizer_type == "GPT2BPETokenizer":
        for name in ("vocab_file", "merge_file"):
            if not getattr(t, name):
                yield f"{flag(name)} is missing: GPT2BPETokenizer needs both of its files"


# Computing rules: sizes that must divide or fit. All sizes are there and positive.


def world_is_divided(c: RunConfig, world: int) -> Problems:
    p = c.parallel
    share = p.tensor_model_parallel_size * p.pipeline_model_parallel_size * p.context_parallel_size
    if share > 1 and world % share:
        yield f"{world} ranks are no multiple of the {share} ranks that share one replica"


def heads_divide_hidden(c: RunConfig, world: int) -> Problems:
    m = c.model
    if m.hidden_size % m.num_attention_heads and m.kv_channels == (
        m.hidden_size // m.num_attention_heads
    ):
        yield (
            f"--hidden-size {m.hidden_size} is no multiple of --num-attention-heads "
            f"{m.num_attention_heads}: change one, or give the size of a head by --kv-channels"
        )


def groups_divide_heads(c: RunConfig, world: int) -> Problems:
    m = c.model
    if m.num_attention_heads % m.num_query_groups:
        yield (
            f"--num-attention-heads {m.num_attention_heads} is no multiple of --num-query-groups "
            f"{m.num_query_groups}: each group serves the same number of query heads"
        )


def rotation_takes_pairs(c: RunConfig, world: int) -> Problems:
    m = c.model
    rotated = int(m.kv_channels * m.rotary_percent)
    if m.position_embedding_type == "rope" and (rotated % 2 or rotated == 0):
        yield (
            f"--rotary-percent {m.rotary_percent:g} of heads of size {m.kv_channels} rotates "
            f"{rotated} channels, but they turn in pairs: choose an even number"
        )


def sequence_fits_positions(c: RunConfig, world: int) -> Problems:
    m = c.model
    if m.seq_length > m.max_position_embeddings:
        yield (
            f"--seq-length {m.seq_length} is longer than --max-position-embeddings "
            f"{m.max_position_embeddings}: raise the latter"
        )


def batch_is_divided(c: RunConfig, world: int) -> Problems:
    t, data_parallel = c.training, replicas(c.parallel, world)
    if t.gradient_accumulation_steps is not None:
        wanted = t.gradient_accumulation_steps * t.micro_batch_size * data_parallel
        yield (
            f"--gradient-accumulation-steps {t.gradient_accumulation_steps} x --micro-batch-size "
            f"{t.micro_batch_size} x {data_parallel} replicas is a global batch of {wanted}, but "
            f"--global-batch-size is {t.global_batch_size}: keep one of the two flags"
        )
    batches = {"--global-batch-size": (t.global_batch_size, t.micro_batch_size)}
    if t.eval_iters or t.full_validation:
        batches["--eval-global-batch-size"] = (t.eval_global_batch_size, t.eval_micro_batch_size)
    if (t.eval_global_batch_size, t.eval_micro_batch_size) == batches["--global-batch-size"]:
        batches.pop("--eval-global-batch-size", None)
    for name, (batch, micro) in batches.items():
        yield from _indivisible(c, f"{name} {batch}", batch, micro * data_parallel)


def batch_schedule_fits(c: RunConfig, world: int) -> Problems:
    t, step = c.training, c.training.micro_batch_size * replicas(c.parallel, world)
    try:
        if t.step_batch_size_schedule is not None:
            name = f"--step-batch-size-schedule {t.step_batch_size_schedule!r}"
            batches = [batch for _, batch in batch_schedule(t.step_batch_size_schedule)]
        elif t.rampup_batch_size is not None:
            name = f"--rampup-batch-size {' '.join(map(str, t.rampup_batch_size))}"
            batches = [*rampup_batches(t.rampup_batch_size, t.global_batch_size)]
        else:
            return
    except ValueError as error:
        yield f"{name} {error}"
        return
    wrong = [batch for batch in batches if batch % step]
    if wrong:
        yield from _indivisible(c, f"{name}: its batch {wrong[0]}", wrong[0], step)


def _indivisible(c: RunConfig, what: str, batch: int, step: int) -> Problems:
    """A batch that is no multiple of micro-batch x replicas = `step`."""
    rounds = c.training.decrease_batch_size_if_needed and batch >= step
    if batch % step and not rounds:
        lower, upper = batch // step * step, -(-batch // step) * step
        near = f"{lower} or {upper}" if lower else f"{upper}"
        yield (
            f"{what} is no multiple of micro-batch size x replicas = {step}: use {near}, "
            "another micro-batch size, or --decrease-batch-size-if-needed"
        )


def saves_are_kept(c: RunConfig, world: int) -> Problems:
    k = c.checkpoint
    if k.save_interval and k.save_retain_interval and k.save_retain_interval % k.save_interval:
        yield (
            f"--save-retain-interval {k.save_retain_interval} is no multiple of --save-interval "
            f"{k.save_interval}: nothing would ever be kept at it"
        )


BASIC_RULES: tuple[Rule, ...] = (required_are_given, sizes_are_positive)
PLAIN_RULES: tuple[Rule, ...] = (
    values_lie_in_range,
    parallelism_is_there,
    one_kind_of_mlp,
    one_precision,
    length_of_training,
    one_unit_of_length,
    warmup_is_given_once,
    schedule_fits,
    wsd_has_an_end,
    learning_rates_in_order,
    weight_decay_has_a_way,
    one_scheduler_wins,
    one_batch_schedule,
    recompute_is_complete,
    checkpoint_is_named,
    data_is_named,
    split_is_readable,
    tokenizer_has_its_files,
)
COMPUTING_RULES: tuple[Rule, ...] = (
    world_is_divided,
    heads_divide_hidden,
    groups_divide_heads,
    rotation_takes_pairs,
    sequence_fits_positions,
    batch_is_divided,
    batch_schedule_fits,
    saves_are_kept,
)

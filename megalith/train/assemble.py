"""From settings to the parts of a run, in the order in which mistakes show earliest."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megalith.comm.mesh import Mesh
from megalith.config.rules import resolve_vocabulary
from megalith.config.schema import RunConfig
from megalith.data.datasets import Datasets, Split, SplitSizes, build_datasets
from megalith.data.loader import MicrobatchLoader
from megalith.data.tokenizers import Tokenizer, build_tokenizer
from megalith.memory.recompute import RecomputePolicy
from megalith.models.gpt import GPT
from megalith.nn.init import initialise
from megalith.nn.shard import declarations
from megalith.optim.batches import BatchSchedule
from megalith.optim.buckets import GradientBuckets
from megalith.optim.groups import group_of
from megalith.optim.optimizer import Optimizer
from megalith.optim.scaler import LossScaler
from megalith.optim.schedule import Schedules
from megalith.train import lines
from megalith.train.log import RunLog
from megalith.train.metrics import gpt_flops, peak_flops
from megalith.train.plan import EvaluationPlan, training_iterations
from megalith.train.progress import Progress
from megalith.train.records import RunFacts
from megalith.train.step import TrainStep
from megalith.train.timers import Timers


@dataclass
class Run:
    """Everything that a training run consists of."""

    config: RunConfig
    mesh: Mesh
    log: RunLog
    timers: Timers
    tokenizer: Tokenizer
    datasets: Datasets
    step: TrainStep
    batches: BatchSchedule
    schedules: Schedules
    evaluation: EvaluationPlan
    total_iterations: int
    progress: Progress

    def loader(self, split: Split) -> MicrobatchLoader:
        """Reads this rank's microbatches of a split."""
        workers = self.config.data.num_workers
        return MicrobatchLoader(split.dataset, split.sampler, self.mesh, workers)


def assemble(config: RunConfig, mesh: Mesh, notices: Sequence[str]) -> Run:
    """Builds a run at its start; every rank calls it.

    `config` is resolved but for the vocabulary. `notices` are told once the log is there.
    """
    tokenizer = build_tokenizer(config.tokenizer)
    config = resolve_vocabulary(config, tokenizer.vocab_size)
    batches = BatchSchedule.of(config.training, config.model.seq_length, mesh.size("dp"))
    evaluation = EvaluationPlan.of(config.training, mesh.size("dp"))
    total = training_iterations(config.training, batches)
    log = RunLog.of(config, _facts(config, batches, total, mesh), mesh)
    _announce(log, config, total, notices)
    timers = Timers(config.logging.timing_log_level, mesh.device)
    return Run(
        config=config,
        mesh=mesh,
        log=log,
        timers=timers,
        tokenizer=tokenizer,
        datasets=_datasets(
            config, tokenizer, mesh, log, _sizes(config, batches, total, evaluation)
        ),
        step=build_step(config, mesh, timers),
        batches=batches,
        schedules=Schedules.of(config, batches),
        evaluation=evaluation,
        total_iterations=total,
        progress=Progress(),
    )


def build_step(config: RunConfig, mesh: Mesh, timers: Timers) -> TrainStep:
    """The training step on a freshly initialised model."""
    dtype = getattr(torch, config.precision.params_dtype)
    recompute = RecomputePolicy.of(config.training, config.model)
    with mesh.device:
        model = GPT(config.model, dtype, config.training.seed, recompute)
    initialise(model, config.training.seed, mesh.coordinates)
    specs = {name: declaration.spec for name, declaration in declarations(model).items()}
    buckets = GradientBuckets(
        model,
        specs,
        lambda spec: group_of(spec, config.optimizer),
        mesh,
        config.parallel.ddp_bucket_size,
        config.parallel.overlap_grad_reduce,
    )
    optimizer = Optimizer(buckets, config.optimizer)
    scaler = LossScaler.of(config.precision)
    return TrainStep(model, buckets, optimizer, scaler, config, mesh, timers)


def _facts(config: RunConfig, batches: BatchSchedule, total: int, mesh: Mesh) -> RunFacts:
    return RunFacts(
        total_iterations=total,
        total_samples=batches.samples_after(total),
        seq_length=config.model.seq_length,
        flops_per_sequence=gpt_flops(config.model, 1),
        processors=mesh.world_size,
        peak_flops=peak_flops(config, mesh.device),
    )


def _sizes(
    config: RunConfig, batches: BatchSchedule, total: int, evaluation: EvaluationPlan
) -> SplitSizes:
    training = config.training
    test = evaluation.iterations * evaluation.batch
    return SplitSizes(
        train=training.train_samples or batches.samples_after(total),
        valid=evaluation.samples(total),
        test=None if evaluation.whole else test,
    )


def _datasets(
    config: RunConfig, tokenizer: Tokenizer, mesh: Mesh, log: RunLog, sizes: SplitSizes
) -> Datasets:
    log.say(lines.dataset_sizes_block(sizes.train, sizes.valid, sizes.test))
    datasets = build_datasets(config, tokenizer, sizes, mesh)
    for notice in datasets.notices:
        log.say(f"note: {notice}")
    log.milestone("after dataloaders are built")
    return datasets


def _announce(log: RunLog, config: RunConfig, total: int, notices: Sequence[str]) -> None:
    for notice in notices:
        log.say(f"note: {notice}")
    if config.training.train_samples is not None:
        log.say(lines.training_iterations_line(total))
    model = config.model
    log.say(lines.padded_vocabulary_line(model.vocab_size, model.padded_vocab_size))

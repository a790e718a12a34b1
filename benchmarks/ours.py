"""Megalith's own training step, built and called as a run does it."""

import torch

from benchmarks.batches import batches, rank
from benchmarks.clock import Clock
from benchmarks.job import Job
from megalith.comm.launch import start
from megalith.config.flags import load_run
from megalith.config.rules import resolve_vocabulary
from megalith.config.schema import RunConfig
from megalith.data.microbatch import Microbatch
from megalith.optim.optimizer import StepRates
from megalith.train.assemble import build_step
from megalith.train.step import TrainStep
from megalith.train.timers import Timers

RATES = StepRates(lr=3e-4, decoupled_lr=3e-4, weight_decay=0.01)


def train(job: Job, clock: Clock) -> None:
    """Runs the job's steps."""
    step = build(job)
    clock.begin(sum(parameter.numel() for parameter in step.model.parameters()))
    for number, (tokens, labels) in enumerate(batches(job)):
        clock.finished(step([microbatch(job, number, tokens, labels)], RATES).loss)


def build(job: Job) -> TrainStep:
    """Joins the run and builds its step."""
    config = configuration(job)
    mesh = start(config.parallel).mesh
    return build_step(config, mesh, Timers(config.logging.timing_log_level, mesh.device))


def configuration(job: Job) -> RunConfig:
    """The resolved settings of the job, from a command line."""
    run = load_run(flags(job), "gpt", job.processes)
    return resolve_vocabulary(run.config, job.workload.vocabulary)


def flags(job: Job) -> list[str]:
    """The command line that a user would give for the job's model and step."""
    work = job.workload
    words = (
        f"--num-layers {work.layers} --hidden-size {work.hidden} "
        f"--num-attention-heads {work.heads} --seq-length {work.sequence} "
        f"--max-position-embeddings {work.sequence} --hidden-dropout 0 --attention-dropout 0 "
        f"--micro-batch-size {work.batch // job.processes} --global-batch-size {work.batch} "
        f"--train-iters {job.steps} --lr {RATES.lr} --mock-data --num-threads {job.threads}"
    )
    return [*words.split(), *(["--bf16"] if work.dtype == "bf16" else [])]


def microbatch(job: Job, step: int, tokens: torch.Tensor, labels: torch.Tensor) -> Microbatch:
    """A step's share of tokens, as the loader would hand it over."""
    samples, length = tokens.shape
    first = step * job.workload.batch + rank() * samples
    return Microbatch(
        tokens=tokens,
        labels=labels,
        loss_mask=torch.ones(samples, length),
        positions=torch.arange(length).repeat(samples, 1),
        sample_numbers=torch.arange(first, first + samples),
        document_starts=None,
    )

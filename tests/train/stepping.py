"""A training step on a small model and made-up microbatches, for tests on one or many ranks."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from megalith.comm.mesh import Mesh, ParallelLayout
from megalith.config.schema import (
    OptimizerConfig,
    ParallelConfig,
    PrecisionConfig,
    RunConfig,
    TrainingConfig,
)
from megalith.data.microbatch import Microbatch
from megalith.nn.shard import declarations
from megalith.optim.buckets import GradientBuckets
from megalith.optim.groups import group_of
from megalith.optim.optimizer import Optimizer, StepRates
from megalith.optim.scaler import LossScaler
from megalith.train.step import StepResult, TrainStep
from megalith.train.timers import Timers
from tests.models.models import build, model_config

SAMPLES, LENGTH, VOCABULARY = 8, 16, 61
RATES = StepRates(1e-2, 1e-3, 0.1)
ONE = Mesh(ParallelLayout(), 0, torch.device("cpu"), {})


def run_config(
    precision: dict[str, Any] | None = None,
    optimizer: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
    parallel: dict[str, Any] | None = None,
    **model: Any,
) -> RunConfig:
    """Settings of a run of the small model, in float64 unless `precision` says otherwise."""
    return RunConfig(
        model=model_config(**model),
        precision=replace(PrecisionConfig(params_dtype="float64"), **precision or {}),
        optimizer=replace(OptimizerConfig(lr=1e-2), **optimizer or {}),
        training=replace(TrainingConfig(), **training or {}),
        parallel=replace(ParallelConfig(), **parallel or {}),
    )


def build_step(
    config: RunConfig, mesh: Mesh = ONE, bucket_size: int = 3000, overlap: bool = True
) -> TrainStep:
    """A step as a run builds it, with buckets small enough that there are several."""
    model = build(config.model, getattr(torch, config.precision.params_dtype))
    specs = {name: d.spec for name, d in declarations(model).items()}
    buckets = GradientBuckets(
        model, specs, lambda spec: group_of(spec, config.optimizer), mesh, bucket_size, overlap
    )
    optimizer = Optimizer(buckets, config.optimizer)
    scaler = LossScaler.of(config.precision)
    return TrainStep(model, buckets, optimizer, scaler, config, mesh, Timers(0, mesh.device))


def microbatches_of(
    mesh: Mesh, micro_batch_size: int, step: int = 0, masked_samples: Sequence[int] = ()
) -> list[Microbatch]:
    """This rank's microbatches of a global batch of eight samples."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH + 1), generator=generator)
    mask = (torch.rand(SAMPLES, LENGTH, generator=generator) > 0.2).float()
    mask[list(masked_samples)] = 0.0
    replicas, rank = mesh.size("dp"), mesh.coordinate("dp")
    found = []
    for start in range(rank * micro_batch_size, SAMPLES, replicas * micro_batch_size):
        rows = slice(start, start + micro_batch_size)
        found.append(
            Microbatch(
                tokens=tokens[rows, :-1],
                labels=tokens[rows, 1:],
                loss_mask=mask[rows],
                positions=torch.arange(LENGTH).expand(micro_batch_size, LENGTH),
                sample_numbers=step * SAMPLES + torch.arange(SAMPLES)[rows],
                document_starts=None,
            )
        )
    return found


def run_steps(
    mesh: Mesh,
    config: RunConfig,
    micro_batch_size: int,
    steps: int = 2,
    masked_samples: Sequence[int] = (),
    overlap: bool = True,
) -> tuple[list[StepResult], dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Results of the steps, the last step's gradients and the weights after it, by name."""
    step = build_step(config, mesh, overlap=overlap)
    results = [
        step(microbatches_of(mesh, micro_batch_size, i, masked_samples), RATES)
        for i in range(steps)
    ]
    entries = list(step.buckets.entries())
    gradients = {e.name: e.of(b.gradients).clone() for b, e in entries}
    weights = {e.name: e.parameter.detach().clone() for _, e in entries}
    return results, gradients, weights


def assert_same(
    actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], tolerance: float = 1e-9
) -> None:
    """Equal as the design defines it: relative to each tensor's largest value, with a floor."""
    floor = 1e-3 * max(value.abs().max().item() for value in expected.values())
    assert actual.keys() == expected.keys()
    for name, reference in expected.items():
        scale = max(reference.abs().max().item(), floor)
        error = (actual[name] - reference).abs().max().item()
        assert error <= tolerance * scale, f"{name}: {error} of {scale}"

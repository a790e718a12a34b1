"""One training step: microbatches in, updated weights out.

The loss of a step is the sum over all unmasked targets of the global batch, over their count. The
count is known before the first forward, so each rank contributes its own part of the sum, and
masks, accumulation and data parallelism cannot bend the gradient.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from megalith.comm.collectives import all_reduce_sum
from megalith.comm.mesh import Mesh
from megalith.config.schema import RunConfig
from megalith.data.microbatch import Microbatch
from megalith.models.gpt import GPT
from megalith.nn.layout import TokenLayout
from megalith.nn.loss import Targets
from megalith.optim.buckets import GradientBuckets
from megalith.optim.clip import clip_factor, gradient_norm
from megalith.optim.optimizer import Optimizer, StepRates
from megalith.optim.scaler import LossScaler
from megalith.train.timers import Timers


@dataclass(frozen=True)
class StepResult:
    """What a step did. `loss` is the mean over the global batch's unmasked targets.

    `updated` says whether the weights changed: they do not where loss or gradient is not finite.
    """

    loss: float
    targets: int
    gradient_norm: float
    updated: bool


class TrainStep:
    """Runs steps on one model."""

    def __init__(
        self,
        model: GPT,
        buckets: GradientBuckets,
        optimizer: Optimizer,
        scaler: LossScaler,
        config: RunConfig,
        mesh: Mesh,
        timers: Timers,
    ) -> None:
        self.model = model
        self.buckets = buckets
        self.optimizer = optimizer
        self.scaler = scaler
        self._mesh = mesh
        self._timers = timers
        self._clip = config.optimizer.clip_grad
        self._mean_of_means = config.training.loss_average == "microbatch"
        self._trusting = not config.training.check_for_nan_in_loss_and_grad

    def __call__(self, microbatches: Sequence[Microbatch], rates: StepRates) -> StepResult:
        """Trains on this rank's microbatches of a global batch; every rank calls it."""
        loss, targets = self.gradients(microbatches)
        # The backpropagated value was loss · scale · microbatches: see `gradients`.
        unit = self.scaler.scale * len(microbatches)
        norm = gradient_norm(self.buckets.buckets).item() / unit
        finite = math.isfinite(norm) and math.isfinite(loss)
        self.scaler.update(overflowed=not finite)
        updated = finite or (self._trusting and not self.scaler.dynamic)
        if updated:
            with self._timers.measure("optimizer"):
                self.optimizer.step(clip_factor(norm, self._clip) / unit, rates)
        return StepResult(loss, targets, norm, updated)

    def gradients(self, microbatches: Sequence[Microbatch]) -> tuple[float, int]:
        """Leaves the step's gradients in the buckets, times loss scale and microbatches.

        Keeping the number of microbatches out of the division while in float16 preserves the
        meaning of the loss scales that people know. Returns the loss and the count of targets.
        """
        total, counts = self._target_counts(microbatches)
        self.buckets.start()
        loss = torch.zeros((), dtype=torch.float64, device=self._mesh.device)
        for index, microbatch in enumerate(microbatches):
            if index == len(microbatches) - 1:
                self.buckets.expect_last()
            share = self._share(counts[index], total, len(microbatches))
            with self._timers.measure("forward-compute", level=2):
                part = forward_loss(self.model, microbatch, self._mesh.device) * share
            with self._timers.measure("backward-compute", level=2):
                (part * (self.scaler.scale * len(microbatches))).backward()
            loss += part.detach()
        with self._timers.measure("all-grads-sync"):
            self.buckets.finish()
            all_reduce_sum(loss, self._mesh.group("dp", "cp"))
        return loss.item(), int(total)

    def _target_counts(self, microbatches: Sequence[Microbatch]) -> tuple[float, list[float]]:
        """Unmasked targets of the global batch, and of each microbatch here."""
        counts = [float(microbatch.loss_mask.sum()) for microbatch in microbatches]
        total = torch.tensor(sum(counts), dtype=torch.float64, device=self._mesh.device)
        all_reduce_sum(total, self._mesh.group("dp", "cp"))
        return total.item(), counts

    def _share(self, count: float, total: float, microbatches: int) -> float:
        """What one token's loss weighs in the step's loss."""
        if self._mean_of_means:
            return 1.0 / (max(count, 1.0) * microbatches * self._mesh.size("dp"))
        return 1.0 / max(total, 1.0)


def forward_loss(model: GPT, microbatch: Microbatch, device: torch.device) -> torch.Tensor:
    """The sum of the losses of a microbatch's unmasked targets."""
    tokens = microbatch.tokens.reshape(-1).to(device, non_blocking=True)
    targets = Targets(
        microbatch.labels.reshape(-1).to(device, non_blocking=True),
        microbatch.loss_mask.reshape(-1).to(device, non_blocking=True),
    )
    return model.loss(tokens, targets, token_layout(microbatch, device))


def token_layout(microbatch: Microbatch, device: torch.device) -> TokenLayout:
    """What the rows of a microbatch's activations are."""
    visible = microbatch.document_starts
    return TokenLayout(
        sample_numbers=microbatch.sample_numbers.to(device),
        positions=microbatch.positions.reshape(-1).to(device),
        sequence_length=microbatch.tokens.shape[1],
        first_visible=visible.to(device) if visible is not None else None,
    )

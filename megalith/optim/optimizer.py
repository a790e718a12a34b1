"""From gradients to weights: AdamW (Loshchilov and Hutter 2019) or SGD over flat buckets.

Each bucket is one tensor to the optimizer. Weights of fewer than 32 bits have main weights in
float32, which are updated and then rounded into the model.
"""

from dataclasses import dataclass

import torch

from megalith.config.schema import OptimizerConfig
from megalith.nn.gradient import at_least_float32
from megalith.nn.shard import ShardedTensor
from megalith.optim.buckets import Bucket, GradientBuckets


@dataclass(frozen=True)
class StepRates:
    """The schedules' values for one step."""

    lr: float
    decoupled_lr: float
    weight_decay: float


class Optimizer:
    """Updates the weights of `buckets` from their gradients."""

    def __init__(self, buckets: GradientBuckets, config: OptimizerConfig) -> None:
        self._buckets = buckets
        self.main = [_main_weights(bucket) for bucket in buckets.buckets]
        self._optimizer = _build(self.main, config)
        self.refresh_main()

    def refresh_main(self) -> None:
        """Takes the main weights from the model, as after loading weights alone."""
        for bucket, main in zip(self._buckets.buckets, self.main, strict=True):
            if main is not bucket.weights:
                main.copy_(bucket.weights)

    @torch.no_grad()
    def step(self, factor: float, rates: StepRates) -> None:
        """Multiplies the gradients by `factor` and updates the weights with them."""
        pairs = zip(self._buckets.buckets, self.main, self._optimizer.param_groups, strict=True)
        for bucket, main, group in pairs:
            group["lr"] = rates.decoupled_lr if bucket.group.decoupled else rates.lr
            group["weight_decay"] = rates.weight_decay if bucket.group.decayed else 0.0
            main.grad = bucket.gradients.mul_(factor) if factor != 1.0 else bucket.gradients
        self._optimizer.step()
        for bucket, main in zip(self._buckets.buckets, self.main, strict=True):
            main.grad = None
            if main is not bucket.weights:
                bucket.weights.copy_(main)

    @property
    def steps(self) -> int:
        """Updates made so far, which Adam's bias correction counts."""
        return int(self._optimizer.state[self.main[0]]["step"]) if self._counts else 0

    @steps.setter
    def steps(self, count: int) -> None:
        for main in self.main if self._counts else ():
            self._optimizer.state[main]["step"].fill_(count)

    @property
    def _counts(self) -> bool:
        return "step" in self._optimizer.state[self.main[0]]

    def tensors(self) -> dict[str, ShardedTensor]:
        """Everything that a resumed run needs, by name; views, so that loading fills them."""
        found = {}
        for bucket, main in zip(self._buckets.buckets, self.main, strict=True):
            flats = {"main": main} if main is not bucket.weights else {}
            state = self._optimizer.state[main]
            flats |= {kind: flat for kind, flat in state.items() if flat.shape == main.shape}
            for kind, flat in flats.items():
                for entry in bucket.entries:
                    tensor = ShardedTensor(entry.of(flat), entry.spec)
                    found[f"optimizer/{kind}/{entry.name}"] = tensor
        return found


def _main_weights(bucket: Bucket) -> torch.Tensor:
    """The tensor that the optimizer updates: the weights themselves if they are wide enough."""
    if at_least_float32(bucket.weights.dtype) == bucket.weights.dtype:
        return bucket.weights
    return torch.empty_like(bucket.gradients)


def _build(main: list[torch.Tensor], config: OptimizerConfig) -> torch.optim.Optimizer:
    """The optimizer with one group a bucket, and its state in place from the start."""
    groups = [{"params": [flat]} for flat in main]
    optimizer: torch.optim.Optimizer
    if config.optimizer == "sgd":
        optimizer = torch.optim.SGD(groups, lr=0.0, momentum=config.sgd_momentum, fused=True)
        kinds = ["momentum_buffer"] if config.sgd_momentum else []
    else:
        betas = (config.adam_beta1, config.adam_beta2)
        optimizer = torch.optim.AdamW(groups, lr=0.0, betas=betas, eps=config.adam_eps, fused=True)
        kinds = ["exp_avg", "exp_avg_sq"]
    for flat in main:
        optimizer.state[flat] = {kind: torch.zeros_like(flat) for kind in kinds}
        if config.optimizer == "adam":
            optimizer.state[flat]["step"] = torch.zeros((), device=flat.device)
    return optimizer

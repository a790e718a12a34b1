"""Trading time for memory: activations thrown away in forward and computed again in backward."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from megalith.config.schema import ModelConfig, TrainingConfig

Layer = Callable[..., torch.Tensor]


@dataclass(frozen=True)
class RecomputePolicy:
    """The first `layers` layers are computed twice, in chunks of `chunk` (Chen et al. 2016).

    Only the input of each chunk is kept. Dropout is keyed by position, so the second computation
    needs no generator state.
    """

    layers: int = 0
    chunk: int = 1

    @staticmethod
    def of(training: TrainingConfig, model: ModelConfig) -> "RecomputePolicy":
        """What a resolved configuration asks for.

        Selective recompute is no policy: attention never keeps its weights (nn.attention_core).
        """
        if training.recompute_granularity != "full":
            return RecomputePolicy()
        count = training.recompute_num_layers
        assert count is not None
        if training.recompute_method == "block":
            return RecomputePolicy(layers=count)
        return RecomputePolicy(layers=model.num_layers, chunk=count)

    def run(self, stack: Sequence[Layer], x: torch.Tensor, *context: Any) -> torch.Tensor:
        """Sends x through the layers, each called as layer(x, *context)."""
        stop = min(self.layers, len(stack)) if torch.is_grad_enabled() else 0
        for start in range(0, stop, self.chunk):
            layers = stack[start : min(start + self.chunk, stop)]
            x = checkpoint(
                _through, layers, x, *context, use_reentrant=False, preserve_rng_state=False
            )
        return _through(stack[stop:], x, *context)


def _through(layers: Iterable[Layer], x: torch.Tensor, *context: Any) -> torch.Tensor:
    for layer in layers:
        x = layer(x, *context)
    return x

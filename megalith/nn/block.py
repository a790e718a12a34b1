"""One pre-norm Transformer layer (Radford et al. 2019)."""

import torch
from torch import nn

from megalith.config.schema import ModelConfig
from megalith.nn.attention import Attention, KeyValueCache
from megalith.nn.layout import TokenLayout
from megalith.nn.mlp import MLP
from megalith.nn.norm import Norm
from megalith.nn.rng import DropoutPlace, dropout, row_keys
from megalith.nn.rope import RotaryPhases


class Block(nn.Module):
    """x [t, h] → [t, h]. `layer` counts from 1 through the whole model."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer
        self.dropout = config.hidden_dropout
        self.attention_norm = Norm(config.hidden_size, config, dtype)
        self.attention = Attention(config, layer, dtype)
        self.mlp_norm = Norm(config.hidden_size, config, dtype)
        self.mlp = MLP(config, dtype)

    def forward(
        self,
        x: torch.Tensor,
        layout: TokenLayout,
        phases: RotaryPhases | None,
        seed: torch.Tensor,
        cache: KeyValueCache | None = None,
    ) -> torch.Tensor:
        attended = self.attention(self.attention_norm(x), layout, phases, seed, cache)
        x = x + self._dropped(attended, DropoutPlace.ATTENTION_OUTPUT, layout, seed)
        fed = self.mlp(self.mlp_norm(x))
        return x + self._dropped(fed, DropoutPlace.MLP_OUTPUT, layout, seed)

    def _dropped(
        self, x: torch.Tensor, place: DropoutPlace, layout: TokenLayout, seed: torch.Tensor
    ) -> torch.Tensor:
        if not self.training or self.dropout == 0.0:
            return x
        return dropout(x, self.dropout, row_keys(seed, self.layer, place, layout))

"""Causal self-attention with multi-, grouped- or single-query heads."""

from dataclasses import dataclass

import torch
from torch import nn

from megalith.config.schema import ModelConfig
from megalith.nn.attention_core import WeightDropout, attend
from megalith.nn.initial import hidden_initial, output_initial
from megalith.nn.layout import TokenLayout
from megalith.nn.linear import Linear
from megalith.nn.norm import Norm
from megalith.nn.rng import DropoutPlace, row_keys
from megalith.nn.rope import RotaryPhases, rotate


@dataclass
class KeyValueCache:
    """The keys and values of the tokens so far, [b, groups, capacity, d] each."""

    keys: torch.Tensor
    values: torch.Tensor

    def extended(
        self, k: torch.Tensor, v: torch.Tensor, start: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Stores the newest keys and values at place `start`; returns all up to them."""
        end = start + k.shape[2]
        self.keys[:, :, start:end] = k
        self.values[:, :, start:end] = v
        return self.keys[:, :, :end], self.values[:, :, :end]


class Attention(nn.Module):
    """x [t, h] → [t, h]. Rows of the qkv weight: all queries, then all keys, then all values."""

    def __init__(self, config: ModelConfig, layer: int, dtype: torch.dtype) -> None:
        super().__init__()
        assert config.kv_channels is not None and config.num_query_groups is not None
        self.layer = layer
        self.head_width = config.kv_channels
        self.heads = config.num_attention_heads
        self.groups = config.num_query_groups
        self.window = config.window_size
        self.dropout = config.attention_dropout
        width = self.heads * self.head_width
        both = 2 * self.groups * self.head_width
        bias = config.add_bias_linear or config.add_qkv_bias
        initial = hidden_initial(config, config.hidden_size, width + both)
        self.qkv = Linear(config.hidden_size, width + both, initial, bias, dtype)
        if config.qk_layernorm:
            self.query_norm = Norm(self.head_width, config, dtype, role="qk_norm")
            self.key_norm = Norm(self.head_width, config, dtype, role="qk_norm")
        self.has_qk_norm = config.qk_layernorm
        initial = output_initial(config, width, config.hidden_size)
        self.output = Linear(width, config.hidden_size, initial, config.add_bias_linear, dtype)

    def forward(
        self,
        x: torch.Tensor,
        layout: TokenLayout,
        phases: RotaryPhases | None,
        seed: torch.Tensor,
        cache: KeyValueCache | None = None,
    ) -> torch.Tensor:
        heads = self.qkv(x).unflatten(-1, (-1, self.head_width))  # [t, heads + 2 groups, d]
        q, k, v = heads.split((self.heads, self.groups, self.groups), dim=1)
        if self.has_qk_norm:
            q, k = self.query_norm(q), self.key_norm(k)
        if phases is not None:
            q, k = rotate(q, phases), rotate(k, phases)
        q, k, v = (self._by_sample(rows, layout) for rows in (q, k, v))
        if cache is not None:
            k, v = cache.extended(k, v, layout.start)
        mixed = attend(q, k, v, layout, self.window, self._dropout(layout, seed))
        return self.output(mixed.transpose(1, 2).reshape(layout.tokens, -1))

    def _by_sample(self, rows: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
        """[t, n, d] → [b, n, s, d], contiguous."""
        return rows.unflatten(0, (layout.samples, -1)).transpose(1, 2).contiguous()

    def _dropout(self, layout: TokenLayout, seed: torch.Tensor) -> WeightDropout | None:
        if not self.training or self.dropout == 0.0:
            return None
        rows = row_keys(seed, self.layer, DropoutPlace.ATTENTION_WEIGHTS, layout)
        return WeightDropout(self.dropout, rows)

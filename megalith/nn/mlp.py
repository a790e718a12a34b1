"""The feed-forward layer, plain or gated (Shazeer 2020)."""

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from megalith.config.schema import ModelConfig
from megalith.nn.initial import hidden_initial, output_initial
from megalith.nn.linear import Linear


class MLP(nn.Module):
    """x [t, h] → [t, h]. When gated, the rows of the up weight are the gate's, then the value's."""

    def __init__(self, config: ModelConfig, dtype: torch.dtype) -> None:
        super().__init__()
        assert config.ffn_hidden_size is not None
        hidden, inner = config.hidden_size, config.ffn_hidden_size
        self.gated = config.swiglu or config.quick_geglu or config.gated_linear_unit
        self.activation = _activation(config)
        width = 2 * inner if self.gated else inner
        bias = config.add_bias_linear
        self.up = Linear(hidden, width, hidden_initial(config, hidden, width), bias, dtype)
        self.down = Linear(inner, hidden, output_initial(config, inner, hidden), bias, dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.up(x)
        if self.gated:
            gate, value = x.chunk(2, dim=-1)
            return self.down(self.activation(gate) * value)
        return self.down(self.activation(x))


def _activation(config: ModelConfig) -> Callable[[torch.Tensor], torch.Tensor]:
    if config.swiglu:
        return F.silu
    if config.squared_relu:
        return _squared_relu
    if config.quick_geglu:
        return _quick_gelu
    return _gelu_tanh if config.bias_gelu_fusion else F.gelu


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    return F.gelu(x, approximate="tanh")


def _quick_gelu(x: torch.Tensor) -> torch.Tensor:
    """x sigmoid(1.702 x) (Hendrycks and Gimpel 2016)."""
    return x * torch.sigmoid(1.702 * x)


def _squared_relu(x: torch.Tensor) -> torch.Tensor:
    """max(x, 0)² (So et al. 2021)."""
    return F.relu(x).square()

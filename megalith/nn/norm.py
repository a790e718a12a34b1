"""LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019)."""

import torch
from torch import nn
from torch.nn import functional as F

from megalith.config.schema import ModelConfig
from megalith.nn.shard import Initial, Role, ShardSpec, declare


class Norm(nn.Module):
    """Normalises the last dim, then scales it (and, for LayerNorm, shifts it).

    With `apply_layernorm_1p` the gain is stored as its distance from one, so that small values
    keep their precision in bf16.
    """

    bias: nn.Parameter | None

    def __init__(
        self, width: int, config: ModelConfig, dtype: torch.dtype, role: Role = "norm"
    ) -> None:
        super().__init__()
        self.epsilon = config.norm_epsilon
        self.one_plus = config.apply_layernorm_1p
        gain = Initial("constant", 0.0 if self.one_plus else 1.0)
        spec = ShardSpec.whole(width, role=role)
        self.weight = declare(self, "weight", spec, gain, dtype)
        self.register_parameter("bias", None)
        if config.normalization == "LayerNorm":
            self.bias = declare(self, "bias", spec, Initial("constant", 0.0), dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gain = 1.0 + self.weight if self.one_plus else self.weight
        if self.bias is None:
            return F.rms_norm(x, gain.shape, gain, self.epsilon)
        return F.layer_norm(x, gain.shape, gain, self.bias, self.epsilon)

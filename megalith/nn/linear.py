"""The one linear layer: y = x Wᵀ + b, with its weight gradient handed to a sink."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from megalith.nn.gradient import GradientSink, SinkModule, add_product, deliver
from megalith.nn.product import widened
from megalith.nn.shard import Initial, ShardSpec, declare


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: torch.Tensor,
        weight: nn.Parameter,
        bias: torch.Tensor | None,
        sink: GradientSink | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(x)
        # Not among the saved tensors: recompute hands those back as others than the parameter.
        ctx.weight, ctx.sink = weight, sink
        wide_bias = widened(bias) if bias is not None else None
        return F.linear(widened(x), widened(weight), wide_bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (dy,) = gradients
        (x,), weight = ctx.saved_tensors, ctx.weight
        dy = widened(dy)
        dx = torch.mm(dy, widened(weight)).to(x.dtype) if ctx.needs_input_grad[0] else None
        dw = None
        if ctx.needs_input_grad[1]:
            dw = deliver(ctx.sink, weight, lambda total: add_product(total, dy, widened(x)))
        db = dy.sum(0).to(x.dtype) if ctx.needs_input_grad[2] else None
        return dx, dw, db, None


class Linear(SinkModule):
    """x [t, in] → [t, out]."""

    bias: nn.Parameter | None

    def __init__(
        self, inputs: int, outputs: int, initial: Initial, bias: bool, dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.weight = declare(self, "weight", ShardSpec.whole(outputs, inputs), initial, dtype)
        self.register_parameter("bias", None)
        if bias:
            spec = ShardSpec.whole(outputs, role="bias")
            self.bias = declare(self, "bias", spec, Initial("constant", 0.0), dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = _Linear.apply(x, self.weight, self.bias, self.sink)
        return y

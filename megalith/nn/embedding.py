"""Embeddings: rows of a table, chosen by token id or position."""

from typing import Any

import torch
from torch import nn

from megalith.nn.gradient import GradientSink, SinkModule, deliver
from megalith.nn.shard import Initial, Role, ShardPart, ShardSpec, declare


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, indices: torch.Tensor, weight: nn.Parameter, sink: GradientSink | None
    ) -> torch.Tensor:
        ctx.save_for_backward(indices)
        ctx.weight, ctx.sink = weight, sink
        return weight.index_select(0, indices)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (dy,) = gradients
        (indices,) = ctx.saved_tensors

        def accumulate(total: torch.Tensor) -> None:
            total.index_add_(0, indices, dy.to(total.dtype))

        return None, deliver(ctx.sink, ctx.weight, accumulate), None


class Embedding(SinkModule):
    """indices [t] → rows [t, h] of a table of `rows` rows.

    Rows from `rows` up to `padded_rows` exist for alignment only: no index may name them, they
    start at zero and get no gradient.
    """

    def __init__(
        self,
        rows: int,
        width: int,
        initial: Initial,
        dtype: torch.dtype,
        padded_rows: int | None = None,
        role: Role = "weight",
    ) -> None:
        super().__init__()
        spec = ShardSpec((rows, width), (ShardPart(padded_rows or rows),), role=role)
        self.weight = declare(self, "weight", spec, initial, dtype)

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        rows: torch.Tensor = _Lookup.apply(indices, self.weight, self.sink)
        return rows

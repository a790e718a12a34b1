"""Where the gradients of large matrices go."""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import nn

_WIDENED_PRODUCT = 1 << 22
"""Elements of a product that are added to a wider sum at a time."""


class GradientSink(Protocol):
    """Takes the gradient of a weight as soon as backward has it.

    `add` calls `accumulate` with the tensor that holds the weight's gradient so far, in at least
    float32, which `accumulate` adds to in place; now, or when a schedule finds the time.
    """

    def add(self, weight: nn.Parameter, accumulate: Callable[[torch.Tensor], None]) -> None: ...


class SinkModule(nn.Module):
    """A module whose weight gradients go to a sink; to `weight.grad` while there is none."""

    sink: GradientSink | None = None


def deliver(
    sink: GradientSink | None, weight: nn.Parameter, accumulate: Callable[[torch.Tensor], None]
) -> torch.Tensor | None:
    """Hands a gradient to the sink, or returns it for autograd where there is no sink."""
    if sink is not None:
        sink.add(weight, accumulate)
        return None
    gradient = torch.zeros(weight.shape, dtype=at_least_float32(weight.dtype), device=weight.device)
    accumulate(gradient)
    return gradient.to(weight.dtype)


def add_product(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total += leftᵀ · right, where `total` may be of a wider dtype than the factors."""
    if total.dtype == left.dtype:
        total.addmm_(left.t(), right)
        return
    # To add a narrow tensor PyTorch first makes a wide copy of it.
    rows = max(1, _WIDENED_PRODUCT // total.shape[1])
    for part, columns in zip(total.split(rows), left.split(rows, dim=1), strict=True):
        part.add_(columns.t() @ right)


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which sums are kept: float32, or float64 for float64."""
    return torch.promote_types(dtype, torch.float32)

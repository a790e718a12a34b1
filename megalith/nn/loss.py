"""Output layer and cross-entropy in one, in chunks of tokens.

Logits exist for one chunk at a time. Each chunk's gradient is taken at once, while its logits are
there, so that backward only scales what forward has found: three products instead of four, and
memory for one chunk.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from megalith.nn.gradient import (
    GradientSink,
    SinkModule,
    add_product,
    at_least_float32,
    deliver,
)
from megalith.nn.product import widened
from megalith.nn.shard import Initial, ShardPart, ShardSpec, declare

_FEWEST_ROWS = 1024
"""Tokens whose logits exist at a time, or the hidden width if that is more: then the logits take no
more memory than the weight, and the weight's gradient is passed over rarely."""

_CACHED_LOGITS = 1 << 19
"""Logits that are turned into gradients at a time: few enough for a processor's cache."""


@dataclass(frozen=True)
class Targets:
    """What each token should predict: `labels` [t] int64, and its `weights` [t], 0 where masked."""

    labels: torch.Tensor
    weights: torch.Tensor


class OutputLayer(SinkModule):
    """Hidden states to logits over the vocabulary; shares `tied` with the embedding if given.

    Rows of the weight beyond `vocabulary` are padding and take no part in anything.
    """

    def __init__(
        self,
        vocabulary: int,
        padded_vocabulary: int,
        width: int,
        initial: Initial,
        dtype: torch.dtype,
        tied: nn.Parameter | None = None,
    ) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        if tied is not None:
            self.weight = tied
        else:
            spec = ShardSpec(
                (vocabulary, width), (ShardPart(padded_vocabulary),), role="vocabulary"
            )
            self.weight = declare(self, "weight", spec, initial, dtype)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [t, vocabulary] of hidden states [t, h]."""
        real = self.weight[: self.vocabulary]
        return F.linear(widened(hidden), widened(real)).to(hidden.dtype)

    def loss(self, hidden: torch.Tensor, targets: Targets) -> torch.Tensor:
        """The weighted sum of the tokens' cross-entropies, in at least float32."""
        # Forward of an autograd function cannot see that gradients are switched off.
        weight = self.weight if torch.is_grad_enabled() else self.weight.detach()
        loss: torch.Tensor = _LinearCrossEntropy.apply(
            hidden, weight, self.vocabulary, targets, self.sink
        )
        return loss


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: nn.Parameter,
        vocabulary: int,
        targets: Targets,
        sink: GradientSink | None,
    ) -> torch.Tensor:
        real = widened(weight[:vocabulary])
        dhidden = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None
        dreal = None
        if ctx.needs_input_grad[1]:
            dreal = torch.zeros_like(real, dtype=at_least_float32(weight.dtype))
        total = hidden.new_zeros((), dtype=at_least_float32(hidden.dtype))
        for rows in _chunks(hidden.shape[0], max(hidden.shape[1], _FEWEST_ROWS)):
            states = widened(hidden[rows])
            dlogits = F.linear(states, real)
            total += _cross_entropy(dlogits, targets.labels[rows], targets.weights[rows])
            if dhidden is not None:
                dhidden[rows] = torch.mm(dlogits, real)
            if dreal is not None:
                add_product(dreal, dlogits, states)
        ctx.save_for_backward(dhidden, dreal)
        ctx.weight, ctx.vocabulary, ctx.sink = weight, vocabulary, sink
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (upstream,) = gradients
        dhidden, dreal = ctx.saved_tensors

        def accumulate(total: torch.Tensor) -> None:
            total[: ctx.vocabulary].addcmul_(dreal, upstream)

        dweight = deliver(ctx.sink, ctx.weight, accumulate) if dreal is not None else None
        dx = dhidden * upstream.to(dhidden.dtype) if dhidden is not None else None
        return dx, dweight, None, None, None


def _cross_entropy(
    logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """The weighted sum of cross-entropies; `logits` become their gradient."""
    wide = at_least_float32(logits.dtype)
    total = logits.new_zeros((), dtype=wide)
    for rows in _chunks(logits.shape[0], _CACHED_LOGITS // logits.shape[1]):
        part, weight, picked = logits[rows], weights[rows, None].to(wide), labels[rows, None]
        scores = part.to(wide)
        highest = scores.amax(-1, keepdim=True)
        own = scores.gather(1, picked)
        odds = scores.sub_(highest).exp_()
        odds_sum = odds.sum(-1, keepdim=True)
        total += (odds_sum.log() + highest - own).mul_(weight).sum()
        gradient = odds.mul_(weight / odds_sum).scatter_add_(1, picked, -weight)
        part.copy_(gradient)
    return total


def _chunks(tokens: int, largest: int) -> list[slice]:
    """Equal runs of at most `largest` tokens, and at least one."""
    count = max(1, -(-tokens // max(1, largest)))
    size = -(-tokens // count)
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]

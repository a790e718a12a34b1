"""Scaled dot-product attention (Vaswani et al. 2017, eq. 1), causal, in blocks of queries.

Only one block of scores exists at a time. Weights are recomputed in backward from the queries and
keys, as in FlashAttention (Dao et al. 2022), so that nothing of size s² is kept. This path takes
dropout on the weights, keyed by (sample, head, query, key), sliding windows, document bounds and
grouped queries alike; `fused_attention` hands the simple case to PyTorch's kernel.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

from megalith.nn.gradient import at_least_float32
from megalith.nn.layout import TokenLayout
from megalith.nn.product import widened
from megalith.nn.rng import column_keys, keep_mask, mix

_QUERY_BLOCK = 128


@dataclass(frozen=True)
class Visibility:
    """Which keys a query may see: none after it, `window` before it, none of another document.

    Places count within the sample; query row i of [b, s] is at place `start` + i, key row j at j.
    """

    start: int = 0
    window: int | None = None
    first_visible: torch.Tensor | None = None  # [b, s]

    def keys(self, low: int, high: int) -> tuple[int, int]:
        """The range of keys that some query of the rows [low, high) may see."""
        first = 0 if self.window is None else max(0, self.start + low - self.window)
        return first, self.start + high

    def hidden(
        self, sample: int, rows: tuple[int, int], keys: tuple[int, int], device: torch.device
    ) -> torch.Tensor:
        """True where the rows of a sample may not see the keys: bool [rows, keys]."""
        places = torch.arange(self.start + rows[0], self.start + rows[1], device=device)[:, None]
        others = torch.arange(*keys, device=device)
        hidden = others > places
        if self.window is not None:
            hidden = hidden | (others < places - self.window)
        if self.first_visible is not None:
            hidden = hidden | (others < self.first_visible[sample, slice(*rows), None])
        return hidden


@dataclass(frozen=True)
class WeightDropout:
    """Dropout on attention weights: its probability and the tokens' keys [b, s]."""

    probability: float
    rows: torch.Tensor

    def keep(
        self, sample: int, rows: tuple[int, int], keys: tuple[int, int], heads: int
    ) -> torch.Tensor:
        """Which weights of a sample survive: bool [heads, rows, keys]."""
        device = self.rows.device
        head_keys = column_keys(torch.arange(heads, device=device))
        row_keys = mix(self.rows[sample, slice(*rows)] ^ head_keys[:, None])
        return keep_mask(
            row_keys, column_keys(torch.arange(*keys, device=device)), self.probability
        )


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layout: TokenLayout,
    window: int | None = None,
    dropout: WeightDropout | None = None,
) -> torch.Tensor:
    """Attention of q [b, heads, s, d] to k and v [b, groups, keys, d] → [b, heads, s, d].

    Scores are scaled by 1/√d. Every `heads / groups` successive heads share a group.
    """
    visibility = Visibility(layout.start, window, layout.first_visible)
    if dropout is None and q.device.type != "cpu":
        return fused_attention(q, k, v, visibility)
    result: torch.Tensor = _BlockedAttention.apply(q, k, v, visibility, dropout)
    return result


def fused_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, visibility: Visibility
) -> torch.Tensor:
    """The same without dropout, by PyTorch's fused kernel."""
    length = q.shape[2]
    grouped = q.shape[1] != k.shape[1]
    if visibility == Visibility():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    rows, keys = (0, length), (0, k.shape[2])
    samples = range(1 if visibility.first_visible is None else q.shape[0])
    hidden = torch.stack([visibility.hidden(i, rows, keys, q.device) for i in samples])
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=~hidden.unsqueeze(1), enable_gqa=grouped
    )


class _BlockedAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        visibility: Visibility,
        dropout: WeightDropout | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(q, k, v)
        ctx.visibility, ctx.dropout = visibility, dropout
        output = torch.empty_like(q)
        q, k, v = widened(q), widened(k), widened(v)
        for block in _blocks(q, k, visibility):
            weights = block.weights(q, k, visibility)
            kept = block.dropped(weights, dropout)
            block.of_queries(output).copy_(block.ungrouped(torch.bmm(kept, block.of_keys(v))))
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v = ctx.saved_tensors
        dtype, dq = q.dtype, torch.empty_like(q)
        dout = widened(gradients[0].contiguous())
        q, k, v = widened(q), widened(k), widened(v)
        sums = at_least_float32(q.dtype)
        dk, dv = torch.zeros_like(k, dtype=sums), torch.zeros_like(v, dtype=sums)
        for block in _blocks(q, k, ctx.visibility):
            weights = block.weights(q, k, ctx.visibility)
            kept = block.dropped(weights, ctx.dropout)
            upstream = block.grouped(dout)
            block.of_keys(dv).add_(torch.bmm(kept.transpose(1, 2), upstream))
            dkept = torch.bmm(upstream, block.of_keys(v).transpose(1, 2))
            dweights = block.dropped(dkept, ctx.dropout)
            dscores = torch._softmax_backward_data(dweights, weights, -1, weights.dtype)
            dscores.mul_(block.scale)
            block.of_queries(dq).copy_(block.ungrouped(torch.bmm(dscores, block.of_keys(k))))
            block.of_keys(dk).add_(torch.bmm(dscores.transpose(1, 2), block.grouped(q)))
        return dq, dk.to(dtype), dv.to(dtype), None, None


@dataclass(frozen=True)
class _Block:
    """Some queries of one sample, with the keys that they may see.

    Within a block the queries of a group are stacked: [groups, heads/groups · rows, d].
    """

    sample: int
    rows: tuple[int, int]
    keys: tuple[int, int]
    groups: int
    scale: float

    def of_queries(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.sample, :, slice(*self.rows)]  # [heads, rows, d]

    def of_keys(self, x: torch.Tensor) -> torch.Tensor:
        return x[self.sample, :, slice(*self.keys)]  # [groups, keys, d]

    def grouped(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.of_queries(x)
        return rows.reshape(self.groups, -1, rows.shape[-1])

    def ungrouped(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, self.rows[1] - self.rows[0], x.shape[-1])

    def weights(self, q: torch.Tensor, k: torch.Tensor, visibility: Visibility) -> torch.Tensor:
        """softmax(q kᵀ / √d) with zeros where a query may not see."""
        queries, keys = self.grouped(q), self.of_keys(k).transpose(1, 2)
        scores = q.new_empty(self.groups, queries.shape[1], keys.shape[2])
        torch.baddbmm(scores, queries, keys, beta=0, alpha=self.scale, out=scores)
        first = self.first_masked(visibility)
        hidden = visibility.hidden(self.sample, self.rows, (first, self.keys[1]), q.device)
        masked = self.ungrouped(scores)[..., first - self.keys[0] :]
        masked.masked_fill_(hidden, -torch.inf)
        return torch.softmax(scores, -1)

    def first_masked(self, visibility: Visibility) -> int:
        """The first key that some query of the block may not see, if only the future is hidden."""
        if visibility.window is None and visibility.first_visible is None:
            return visibility.start + self.rows[0]
        return self.keys[0]

    def dropped(self, weights: torch.Tensor, dropout: WeightDropout | None) -> torch.Tensor:
        """The weights that dropout leaves, scaled up; the gradient passes in the same way."""
        if dropout is None:
            return weights
        heads = self.ungrouped(weights)
        keep = dropout.keep(self.sample, self.rows, self.keys, heads.shape[0])
        kept = torch.where(keep, heads / (1.0 - dropout.probability), 0.0)
        return kept.view(weights.shape)


def _blocks(q: torch.Tensor, k: torch.Tensor, visibility: Visibility) -> Iterator[_Block]:
    samples, _, length, width = q.shape
    for sample in range(samples):
        for low in range(0, length, _QUERY_BLOCK):
            rows = (low, min(low + _QUERY_BLOCK, length))
            yield _Block(sample, rows, visibility.keys(*rows), k.shape[1], width**-0.5)

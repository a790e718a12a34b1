"""Scaled dot-product attention (Vaswani et al. 2017, eq. 1), causal, in blocks of queries.

Only one block of scores exists at a time. Backward finds the weights again from the queries, the
keys and the log-sum-exp of each query's scores, as in FlashAttention (Dao et al. 2022), so that
nothing of size s² is kept. This path takes dropout on the weights, keyed by (sample, head, query,
key), sliding windows, document bounds and grouped queries alike. PyTorch's kernels do the simple
case: forward on a CPU, where ours is the faster backward, and all of it on other devices.
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

_BLOCK_BYTES = 6144
"""Queries of a block, over all heads, times the size of an element: few enough for its scores to
stay in the cores' caches, and enough for few blocks."""

_FEWEST_QUERIES, _MOST_QUERIES = 64, 512


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
        wide = widened(q), widened(k), widened(v)
        if dropout is None and visibility == Visibility():
            output, log_sums = _plain_forward(*wide)
        else:
            output, log_sums = _blocked_forward(*wide, visibility, dropout)
        output = output.to(q.dtype)
        ctx.save_for_backward(q, k, v, output, log_sums)
        ctx.visibility, ctx.dropout = visibility, dropout
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, output, log_sums = ctx.saved_tensors
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        dout, output = widened(gradients[0]), widened(output)
        q, k, v = widened(q), widened(k), widened(v)
        for sample in range(q.shape[0]):
            dk_sum = torch.zeros_like(k[sample], dtype=log_sums.dtype)
            dv_sum = torch.zeros_like(v[sample], dtype=log_sums.dtype)
            for block in _blocks(sample, q, k, ctx.visibility):
                queries, keys, values = block.grouped(q), block.of_keys(k), block.of_keys(v)
                # Rounding the log-sum to the scores' dtype scales a query's weights by a factor,
                # which its upstream gradient takes back.
                exact = block.grouped(log_sums.unsqueeze(-1))
                rounded = exact.to(q.dtype)
                factor = (rounded.to(exact.dtype) - exact).exp_()
                upstream = (block.grouped(dout) * factor).to(q.dtype)
                shift = (block.grouped(output) * upstream).sum(-1, keepdim=True)
                weights = block.scores(queries, keys, rounded, ctx.visibility).exp_()
                kept = block.dropped(weights, ctx.dropout)
                block.within(dv_sum).add_(torch.bmm(kept.transpose(1, 2), upstream))
                if ctx.dropout is None:
                    dweights = _shifted_product(upstream, values, shift)
                else:
                    dkept = torch.bmm(upstream, values.transpose(1, 2))
                    dweights = block.dropped(dkept, ctx.dropout).sub_(shift)
                dscores = dweights.mul_(weights)
                product = torch.bmm(dscores, keys).mul_(block.scale)
                block.of_queries(dq).copy_(block.ungrouped(product))
                block.within(dk_sum).add_(
                    torch.bmm(dscores.transpose(1, 2), queries), alpha=block.scale
                )
            dk[sample], dv[sample] = dk_sum, dv_sum
        return dq, dk, dv, None, None


def _plain_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention and the log-sum-exp [b, heads, s] of the scores, by PyTorch's CPU kernel.

    Called by its own name, because `scaled_dot_product_attention` keeps the log-sum-exp to itself.
    """
    output, log_sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, dropout_p=0.0, is_causal=True
    )
    return output, log_sums


def _blocked_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visibility: Visibility,
    dropout: WeightDropout | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention and the log-sum-exp of the scores, for any visibility and dropout."""
    output = torch.empty_like(q)
    log_sums = q.new_empty(q.shape[:3], dtype=at_least_float32(q.dtype))
    for sample in range(q.shape[0]):
        for block in _blocks(sample, q, k, visibility):
            zero = q.new_zeros(())
            scores = block.scores(block.grouped(q), block.of_keys(k), zero, visibility)
            highest = scores.amax(-1, keepdim=True)
            odds = scores.sub_(highest).exp_()
            sums = odds.sum(-1, keepdim=True, dtype=log_sums.dtype)
            kept = block.dropped(odds, dropout)
            mixed = torch.bmm(kept, block.of_keys(v)) / sums
            block.of_queries(output).copy_(block.ungrouped(mixed))
            block.of_queries(log_sums).copy_(block.ungrouped(sums.log() + highest).squeeze(-1))
    return output, log_sums


def _shifted_product(
    left: torch.Tensor, right: torch.Tensor, shift: torch.Tensor, scale: float = 1.0
) -> torch.Tensor:
    """left · rightᵀ · scale - shift, the shift [n, rows, 1] taken off within the product."""
    whole = (-shift).expand(left.shape[0], left.shape[1], right.shape[1])
    return torch.baddbmm(whole, left, right.transpose(1, 2), alpha=scale)


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
        return self.within(x[self.sample])

    def within(self, x: torch.Tensor) -> torch.Tensor:
        """The block's keys of a sample [groups, s, d] → [groups, keys, d]."""
        return x[:, slice(*self.keys)]

    def grouped(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.of_queries(x)
        return rows.reshape(self.groups, -1, rows.shape[-1])

    def ungrouped(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(-1, self.rows[1] - self.rows[0], x.shape[-1])

    def scores(
        self, q: torch.Tensor, k: torch.Tensor, shift: torch.Tensor, visibility: Visibility
    ) -> torch.Tensor:
        """q kᵀ / √d - shift, with -∞ where a query may not see."""
        scores = _shifted_product(q, k, shift, self.scale)
        first = self.first_masked(visibility)
        hidden = visibility.hidden(self.sample, self.rows, (first, self.keys[1]), q.device)
        # Adding is several times faster than filling through a mask.
        veil = scores.new_zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        self.ungrouped(scores)[..., first - self.keys[0] :].add_(veil)
        return scores

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


def _blocks(
    sample: int, q: torch.Tensor, k: torch.Tensor, visibility: Visibility
) -> Iterator[_Block]:
    """A sample's blocks."""
    heads, length, width = q.shape[1:]
    size = _BLOCK_BYTES // (q.element_size() * heads)
    size = max(_FEWEST_QUERIES, min(size, _MOST_QUERIES))
    for low in range(0, length, size):
        rows = (low, min(low + size, length))
        yield _Block(sample, rows, visibility.keys(*rows), k.shape[1], width**-0.5)

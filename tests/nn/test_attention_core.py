"""Blocked attention equals attention written out, in every combination of what it masks."""

import pytest
import torch

from megalith.nn.attention_core import Visibility, WeightDropout, attend, fused_attention
from megalith.nn.layout import TokenLayout
from megalith.nn.rng import DropoutPlace, row_keys
from tests.models.models import layout_of

SAMPLES, LENGTH, WIDTH = 2, 300, 8


def _inputs(heads: int, groups: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = [(SAMPLES, n, LENGTH, WIDTH) for n in (heads, groups, groups)]
    return [
        torch.randn(s, generator=generator, dtype=torch.float64).requires_grad_() for s in shapes
    ]


def _written_out(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    visible: torch.Tensor,
    dropout: WeightDropout | None,
) -> torch.Tensor:
    repeats = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
    scores = (q @ k.transpose(-1, -2)) / q.shape[-1] ** 0.5
    weights = scores.masked_fill(~visible, -torch.inf).softmax(-1)
    if dropout is not None:
        keys, rows = (0, k.shape[2]), (0, q.shape[2])
        keep = torch.stack([dropout.keep(i, rows, keys, q.shape[1]) for i in range(q.shape[0])])
        weights = weights * keep / (1.0 - dropout.probability)
    return weights @ v


def _visible(window: int | None, first_visible: torch.Tensor | None) -> torch.Tensor:
    query, key = torch.arange(LENGTH)[:, None], torch.arange(LENGTH)
    visible = (key <= query)[None, None].repeat(SAMPLES, 1, 1, 1)
    if window is not None:
        visible &= key >= query - window
    if first_visible is not None:
        visible &= key >= first_visible[:, None, :, None]
    return visible


def _documents() -> torch.Tensor:
    """Documents that begin at 0, 17 and 201 in one sample, at 0 and 128 in the other."""
    starts = torch.zeros(SAMPLES, LENGTH, dtype=torch.int64)
    starts[0, 17:], starts[0, 201:], starts[1, 128:] = 17, 201, 128
    return starts


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("window", [None, 0, 50, 130])
@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("probability", [0.0, 0.2])
def test_blocked_attention_equals_attention_written_out(
    groups: int, window: int | None, documents: bool, probability: float
) -> None:
    inputs = _inputs(4, groups)
    first_visible = _documents() if documents else None
    layout = layout_of(SAMPLES, LENGTH, first_visible=first_visible)
    dropout = None
    if probability:
        rows = row_keys(torch.tensor(5), 1, DropoutPlace.ATTENTION_WEIGHTS, layout)
        dropout = WeightDropout(probability, rows)
    actual = attend(*inputs, layout, window, dropout)
    expected = _written_out(*inputs, _visible(window, first_visible), dropout)
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    upstream = torch.randn_like(actual)
    gradients = torch.autograd.grad(actual, inputs, upstream)
    wanted = torch.autograd.grad(expected, inputs, upstream)
    for gradient, reference in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=0, atol=1e-12)


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("documents", [False, True])
def test_fused_attention_equals_blocked_attention(window: int | None, documents: bool) -> None:
    inputs = _inputs(4, 2)
    first_visible = _documents() if documents else None
    blocked = attend(*inputs, layout_of(SAMPLES, LENGTH, first_visible=first_visible), window)
    fused = fused_attention(*inputs, Visibility(0, window, first_visible))
    torch.testing.assert_close(fused, blocked, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("window", [None, 50])
def test_later_queries_see_earlier_keys(fused: bool, window: int | None) -> None:
    q, k, v = _inputs(4, 2)
    whole = attend(q, k, v, layout_of(SAMPLES, LENGTH), window)
    start = 290
    layout = TokenLayout(torch.arange(SAMPLES), torch.arange(start, LENGTH), 10, start=start)
    if fused:
        tail = fused_attention(q[:, :, start:], k, v, Visibility(start, window))
    else:
        tail = attend(q[:, :, start:], k, v, layout, window)
    torch.testing.assert_close(tail, whole[:, :, start:], rtol=0, atol=1e-12)


def test_later_tokens_change_nothing_before_them() -> None:
    q, k, v = _inputs(4, 4)
    before = attend(q, k, v, layout_of(SAMPLES, LENGTH))
    with torch.no_grad():
        k[:, :, 200:] += 1.0
        v[:, :, 200:] += 1.0
    after = attend(q, k, v, layout_of(SAMPLES, LENGTH))
    assert torch.equal(before[:, :, :200], after[:, :, :200])

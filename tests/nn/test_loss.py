"""The output layer's loss, in chunks, is cross-entropy written out."""

import pytest
import torch
from torch.nn import functional as F

from megalith.nn.initial import Initial
from megalith.nn.loss import OutputLayer, Targets


def _layer(vocabulary: int, padded: int, width: int = 8) -> OutputLayer:
    layer = OutputLayer(vocabulary, padded, width, Initial("constant", 0.0), torch.float64)
    generator = torch.Generator().manual_seed(1)
    values = torch.randn(padded, width, generator=generator, dtype=torch.float64)
    values[vocabulary:] = 50.0  # padding that would win everywhere
    layer.weight.data.copy_(values)
    return layer


def _inputs(tokens: int, vocabulary: int, width: int = 8) -> tuple[torch.Tensor, Targets]:
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64)
    labels = torch.randint(vocabulary, (tokens,), generator=generator)
    weights = (torch.rand(tokens, generator=generator) > 0.3).double()
    return hidden.requires_grad_(), Targets(labels, weights)


@pytest.mark.parametrize(
    ("tokens", "vocabulary", "padded"),
    [(1, 7, 8), (128, 7, 7), (129, 7, 8), (400, 7, 12), (130, 20011, 20016)],
)
def test_loss_and_gradients_are_those_of_cross_entropy(
    tokens: int, vocabulary: int, padded: int
) -> None:
    layer = _layer(vocabulary, padded)
    hidden, targets = _inputs(tokens, vocabulary)
    loss = layer.loss(hidden, targets)
    (loss * 3.0).backward()
    assert hidden.grad is not None and layer.weight.grad is not None
    ours = hidden.grad.clone(), layer.weight.grad.clone()
    hidden.grad = layer.weight.grad = None
    logits = F.linear(hidden, layer.weight[:vocabulary])
    losses = F.cross_entropy(logits, targets.labels, reduction="none")
    expected = (losses * targets.weights).sum()
    (expected * 3.0).backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(ours[0], hidden.grad, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(ours[1], layer.weight.grad, rtol=1e-10, atol=1e-12)
    assert ours[1][vocabulary:].eq(0.0).all()


def test_every_target_masked_is_loss_0_and_gradient_0() -> None:
    layer = _layer(7, 8)
    hidden, targets = _inputs(20, 7)
    loss = layer.loss(hidden, Targets(targets.labels, torch.zeros(20)))
    loss.backward()
    assert hidden.grad is not None and layer.weight.grad is not None
    assert loss.item() == 0.0 and hidden.grad.eq(0.0).all() and layer.weight.grad.eq(0.0).all()

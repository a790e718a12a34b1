"""Dropout masks are a function of position alone, and as random as they should be."""

import pytest
import torch

from megalith.nn.layout import TokenLayout
from megalith.nn.rng import DropoutPlace, column_keys, dropout, keep_mask, row_keys
from tests.models.models import layout_of

SEED = torch.tensor(11)


def _keep(layout: TokenLayout, layer: int = 1, seed: torch.Tensor = SEED) -> torch.Tensor:
    rows = row_keys(seed, layer, DropoutPlace.MLP_OUTPUT, layout)
    return keep_mask(rows.reshape(-1), column_keys(torch.arange(512)), 0.3)


def test_mask_of_a_sample_does_not_depend_on_its_microbatch() -> None:
    together = _keep(layout_of(4, 32))
    alone = torch.cat([_keep(layout_of(1, 32, first_sample=i)) for i in range(4)])
    assert torch.equal(together, alone)


def test_mask_of_a_row_does_not_depend_on_the_start() -> None:
    whole = _keep(layout_of(1, 32))
    tail = TokenLayout(torch.tensor([0]), torch.arange(20, 32), 12, start=20)
    assert torch.equal(whole[20:], _keep(tail))


@pytest.mark.parametrize("probability", [0.01, 0.1, 0.5, 0.9])
def test_share_of_dropped_elements_is_the_probability(probability: float) -> None:
    rows = row_keys(SEED, 1, DropoutPlace.EMBEDDING, layout_of(8, 256)).reshape(-1)
    keep = keep_mask(rows, column_keys(torch.arange(512)), probability)
    expected = 1.0 - probability
    tolerance = 5.0 * (probability * expected / keep.numel()) ** 0.5
    assert abs(keep.double().mean().item() - expected) < tolerance
    spread = 5.0 * (probability * expected / 512) ** 0.5
    assert (keep.double().mean(1) - expected).abs().max() < spread


def test_masks_of_different_keys_are_uncorrelated() -> None:
    base = _keep(layout_of(4, 128)).double() - 0.7
    others = [
        _keep(layout_of(4, 128), layer=2),
        _keep(layout_of(4, 128), seed=torch.tensor(12)),
        _keep(layout_of(4, 128), seed=torch.tensor(11 + (1 << 32))),
        _keep(layout_of(4, 128, first_sample=1)),
        _keep(layout_of(4, 128, first_sample=1 << 32)),
        _keep(layout_of(4, 128)).roll(1, 0),
        _keep(layout_of(4, 128)).roll(1, 1),
    ]
    for other in others:
        correlation = (base * (other.double() - 0.7)).mean() / 0.21
        assert correlation.abs() < 5.0 / base.numel() ** 0.5


def test_kept_elements_are_scaled_up() -> None:
    x = torch.ones(64, 16, dtype=torch.float64)
    y = dropout(x, 0.25, row_keys(SEED, 1, DropoutPlace.EMBEDDING, layout_of(2, 32)))
    assert set(y.unique().tolist()) == {0.0, 1.0 / 0.75}

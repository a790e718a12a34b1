"""Recompute: the same numbers, fewer activations kept."""

import pytest
import torch

from megalith.config.schema import TrainingConfig
from megalith.memory.recompute import RecomputePolicy
from tests.models.models import build, layout_of, model_config, random_batch

FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}


def _gradients(policy: RecomputePolicy) -> tuple[torch.Tensor, list[torch.Tensor], int]:
    """Loss, gradients, and the number of elements kept for backward."""
    config = model_config(num_layers=4, hidden_dropout=0.1, attention_dropout=0.1)
    model = build(config, recompute=policy)
    tokens, targets = random_batch(2, 16)
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = model.loss(tokens, targets, layout_of(2, 16))
        size = sum(kept.values())
    loss.backward()
    return loss.detach(), [p.grad for p in model.parameters() if p.grad is not None], size


@pytest.mark.parametrize(
    "policy", [RecomputePolicy(2), RecomputePolicy(4), RecomputePolicy(4, 2), RecomputePolicy(4, 3)]
)
def test_recompute_changes_no_bit_and_keeps_less(policy: RecomputePolicy) -> None:
    loss, gradients, size = _gradients(RecomputePolicy())
    again, same, smaller = _gradients(policy)
    assert torch.equal(loss, again)
    assert all(torch.equal(a, b) for a, b in zip(gradients, same, strict=True))
    assert smaller < size


@pytest.mark.parametrize(
    ("changes", "policy"),
    [
        ({}, RecomputePolicy()),
        ({"recompute_granularity": "selective"}, RecomputePolicy()),
        (FULL, RecomputePolicy(6, 1)),
        (FULL | {"recompute_num_layers": 3}, RecomputePolicy(6, 3)),
        (FULL | {"recompute_method": "block", "recompute_num_layers": 2}, RecomputePolicy(2, 1)),
    ],
)
def test_policy_follows_the_settings(changes: dict[str, object], policy: RecomputePolicy) -> None:
    assert RecomputePolicy.of(TrainingConfig(**changes), model_config(num_layers=6)) == policy

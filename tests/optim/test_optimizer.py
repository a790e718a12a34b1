"""Updates over flat buckets are those of torch's optimizers, parameter by parameter."""

from typing import Any

import pytest
import torch

from megalith.optim.clip import clip_factor, gradient_norm, parameter_norm, zeros_in_gradient
from megalith.optim.optimizer import StepRates
from tests.train.stepping import ONE, build_step, microbatches_of, run_config

RATES = [StepRates(1e-2, 3e-3, 0.1), StepRates(5e-3, 1e-3, 0.2), StepRates(0.0, 1e-3, 0.1)]


def _reference(named: dict[str, torch.Tensor], optimizer: str) -> torch.optim.Optimizer:
    """One group a parameter: decayed if a matrix, at its own rate if embedding or output."""
    groups = [{"params": [value], "name": name} for name, value in named.items()]
    if optimizer == "sgd":
        return torch.optim.SGD(groups, lr=0.0, momentum=0.9)
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.999), eps=1e-8)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
@pytest.mark.parametrize("settings", [{}, {"decoupled_lr": 1.0}, {"clip_grad": 0.05}])
def test_updates_equal_torch(optimizer: str, settings: dict[str, Any]) -> None:
    config = run_config(optimizer={"optimizer": optimizer} | settings)
    step = build_step(config)
    named = {e.name: e.parameter.detach().clone() for _, e in step.buckets.entries()}
    reference = _reference(named, optimizer)
    for number, rates in enumerate(RATES):
        batch = microbatches_of(ONE, 4, number)
        step.gradients(batch)
        gradients = {
            e.name: e.of(bucket.gradients) / len(batch) for bucket, e in step.buckets.entries()
        }
        norm = torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients.values()]))
        factor = min(1.0, config.optimizer.clip_grad / (float(norm) + 1e-6))
        for group in reference.param_groups:
            name, value = group["name"], group["params"][0]
            value.grad = gradients[name] * factor
            own = "decoupled_lr" in settings and name == "word_embedding.weight"
            group["lr"] = rates.decoupled_lr if own else rates.lr
            group["weight_decay"] = rates.weight_decay if value.dim() > 1 else 0.0
        reference.step()
        step(batch, rates)
        for _, entry in step.buckets.entries():
            torch.testing.assert_close(
                entry.parameter.detach(), named[entry.name], rtol=1e-12, atol=1e-14
            )


def test_main_weights_are_float32_and_the_model_follows_them() -> None:
    step = build_step(run_config(precision={"params_dtype": "bfloat16"}))
    step(microbatches_of(ONE, 4), RATES[0])
    for bucket, main in zip(step.buckets.buckets, step.optimizer.main, strict=True):
        assert main.dtype == bucket.gradients.dtype == torch.float32
        assert torch.equal(bucket.weights, main.bfloat16())


def test_norms_and_zeros_are_of_the_whole_model() -> None:
    step = build_step(run_config())
    step.gradients(microbatches_of(ONE, 4))
    buckets = step.buckets.buckets
    assert len(buckets) > 1
    gradients = torch.cat([e.of(b.gradients).flatten() for b, e in step.buckets.entries()])
    weights = torch.cat([e.parameter.detach().flatten() for _, e in step.buckets.entries()])
    assert gradient_norm(buckets).item() == pytest.approx(gradients.norm().item(), rel=1e-12)
    assert parameter_norm(buckets) == pytest.approx(weights.norm().item(), rel=1e-12)
    assert zeros_in_gradient(buckets) == int((gradients == 0).sum()) > 0


def test_clipping_begins_at_the_limit() -> None:
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(4.0, 1.0) == pytest.approx(0.25, rel=1e-6)
    assert clip_factor(4.0, 0.0) == 1.0


def test_state_comes_back_through_its_tensors() -> None:
    config = run_config()
    first, second = build_step(config), build_step(config)
    first(microbatches_of(ONE, 4), RATES[0])
    ours, theirs = first.optimizer.tensors(), second.optimizer.tensors()
    assert {name.split("/")[1] for name in ours} == {"exp_avg", "exp_avg_sq"}
    for name, tensor in ours.items():
        theirs[name].tensor.copy_(tensor.tensor)
    for _, entry in first.buckets.entries():
        second.model.get_parameter(entry.name).data.copy_(entry.parameter.data)
    second.optimizer.steps = first.optimizer.steps
    assert first.optimizer.steps == 1
    batch = microbatches_of(ONE, 4, 1)
    assert first(batch, RATES[1]) == second(batch, RATES[1])
    for (_, here), (_, there) in zip(
        first.buckets.entries(), second.buckets.entries(), strict=True
    ):
        assert torch.equal(here.parameter, there.parameter)

"""A step gives the same numbers however its batch is divided, and never uses bad ones."""

from typing import Any

import pytest
import torch

from megalith.comm.mesh import Mesh
from megalith.optim.clip import clip_factor
from megalith.train import assemble
from megalith.train.timers import Timers
from tests.pool import WorkerPool
from tests.train.stepping import (
    ONE,
    RATES,
    SAMPLES,
    assert_same,
    build_step,
    microbatches_of,
    run_config,
    run_steps,
)

SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"hidden_dropout": 0.1, "attention_dropout": 0.1},
    "untied": {"untie_embeddings_and_output_weights": True},
    "decoupled": {"optimizer": {"decoupled_lr": 1e-3}},
    "sgd": {"optimizer": {"optimizer": "sgd"}},
    "clipped": {"optimizer": {"clip_grad": 0.01}},
}


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("micro_batch_size", [1, 2, 4])
def test_micro_batch_size_changes_nothing(settings: str, micro_batch_size: int) -> None:
    config = run_config(**SETTINGS[settings])
    expected = run_steps(ONE, config, SAMPLES)
    actual = run_steps(ONE, config, micro_batch_size)
    for result, reference in zip(actual[0], expected[0], strict=True):
        assert abs(result.loss - reference.loss) <= 1e-9 * reference.loss
        assert result.targets == reference.targets
    _assert_same_gradients(actual, expected, SAMPLES // micro_batch_size)
    assert_same(actual[2], expected[2])


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("overlap", [True, False])
def test_two_replicas_equal_one_process(pool2: WorkerPool, settings: str, overlap: bool) -> None:
    _compare_with_one_process(pool2, SETTINGS[settings], (), overlap)


@pytest.mark.parametrize("settings", ["plain", "dropout"])
def test_four_replicas_equal_one_process(pool4: WorkerPool, settings: str) -> None:
    _compare_with_one_process(pool4, SETTINGS[settings], (), True)


@pytest.mark.parametrize("masked", [(1, 3, 5, 7), (0, 1, 2)])
def test_masked_rank_contributes_zero(pool2: WorkerPool, masked: tuple[int, ...]) -> None:
    _compare_with_one_process(pool2, {}, masked, True)


def _compare_with_one_process(
    pool: WorkerPool, settings: dict[str, Any], masked: tuple[int, ...], overlap: bool
) -> None:
    config = run_config(**settings)
    expected = run_steps(ONE, config, SAMPLES, 2, masked)
    ranks = pool.run(run_steps, config, 1, 2, masked, overlap)
    for actual in ranks:
        for result, reference in zip(actual[0], expected[0], strict=True):
            assert abs(result.loss - reference.loss) <= 1e-9 * abs(reference.loss)
        _assert_same_gradients(actual, expected, SAMPLES // len(ranks))
        assert_same(actual[2], expected[2])
        assert all(torch.equal(actual[2][n], ranks[0][2][n]) for n in expected[2])


def _assert_same_gradients(actual: Any, expected: Any, microbatches: int) -> None:
    """Buckets hold what the optimizer used: clipped, and no longer times the microbatches."""
    del microbatches
    assert_same(actual[1], expected[1])


def test_mean_of_means_weighs_microbatches_alike() -> None:
    config = run_config(training={"loss_average": "microbatch"})
    step = build_step(config)
    microbatches = microbatches_of(ONE, 2)
    means = []
    for microbatch in microbatches:
        alone = build_step(run_config())([microbatch], RATES)
        means.append(alone.loss)
    assert step(microbatches, RATES).loss == pytest.approx(sum(means) / len(means), rel=1e-12)
    assert step(microbatches, RATES).loss != pytest.approx(
        build_step(run_config())(microbatches, RATES).loss, rel=1e-6
    )


def test_batch_of_masked_targets_has_zero_loss_and_gradient() -> None:
    step = build_step(run_config(optimizer={"weight_decay": 0.0}))
    result = step(microbatches_of(ONE, 2, masked_samples=range(SAMPLES)), RATES)
    assert (result.loss, result.gradient_norm, result.targets) == (0.0, 0.0, 0)
    assert not any(bucket.gradients.any() for bucket in step.buckets.buckets)


def test_clipping_limits_the_gradient_norm() -> None:
    assert clip_factor(0.5, 1.0) == 1.0
    assert clip_factor(4.0, 1.0) == pytest.approx(0.25, rel=1e-6)
    assert clip_factor(4.0, 0.0) == 1.0
    step = build_step(run_config(optimizer={"clip_grad": 0.01}))
    result = step(microbatches_of(ONE, 2), RATES)
    assert result.gradient_norm > 0.01
    total = sum(float(b.gradients.square().sum()) for b in step.buckets.buckets)
    assert total**0.5 == pytest.approx(0.01, rel=1e-3)


def test_weight_decay_leaves_gains_and_biases_alone() -> None:
    def weights_after(decay: float) -> dict[str, torch.Tensor]:
        step = build_step(run_config())
        rates = type(RATES)(RATES.lr, RATES.lr, decay)
        step(microbatches_of(ONE, 8), rates)
        return {e.name: e.parameter.detach() for _, e in step.buckets.entries()}

    plain, decayed = weights_after(0.0), weights_after(0.5)
    for name, value in plain.items():
        assert torch.equal(value, decayed[name]) == (value.dim() == 1), name


def test_decoupled_rate_moves_the_vocabulary_alone() -> None:
    def weights_after(decoupled: float) -> dict[str, torch.Tensor]:
        step = build_step(run_config(optimizer={"decoupled_lr": 1.0}))
        step(microbatches_of(ONE, 8), type(RATES)(1e-2, decoupled, 0.0))
        return {e.name: e.parameter.detach() for _, e in step.buckets.entries()}

    small, large = weights_after(1e-3), weights_after(1e-2)
    for name, value in small.items():
        assert torch.equal(value, large[name]) == (name != "word_embedding.weight"), name


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_weights_follow_float32_main_weights(dtype: str) -> None:
    config = run_config(precision={"params_dtype": dtype, "initial_loss_scale": 1024.0})
    step = build_step(config)
    tiny = type(RATES)(1e-6, 1e-6, 0.0)
    before = [main.clone() for main in step.optimizer.main]
    for i in range(3):
        step(microbatches_of(ONE, 4, i), tiny)
    for bucket, main, start in zip(step.buckets.buckets, step.optimizer.main, before, strict=True):
        assert main.dtype == torch.float32 and not torch.equal(main, start)
        assert torch.equal(bucket.weights, main.to(bucket.weights.dtype))


def test_overflow_skips_the_update_and_lowers_the_scale() -> None:
    config = run_config(
        precision={"params_dtype": "float16", "fp16": True, "initial_loss_scale": 2.0**40,
                   "hysteresis": 1}
    )  # fmt: skip
    step = build_step(config)
    before = [bucket.weights.clone() for bucket in step.buckets.buckets]
    result = step(microbatches_of(ONE, 2), RATES)
    assert not result.updated and step.scaler.scale == 2.0**39
    for bucket, weights in zip(step.buckets.buckets, before, strict=True):
        assert torch.equal(bucket.weights, weights)


def test_loss_scale_changes_no_number_but_rounding() -> None:
    plain = run_steps(ONE, run_config(), 2)
    scaled = run_steps(ONE, run_config(precision={"loss_scale": 2.0**10}), 2)
    assert_same(scaled[2], plain[2])
    assert plain[0][0].gradient_norm == pytest.approx(scaled[0][0].gradient_norm, rel=1e-12)


def gradients_arrive_in_order(mesh: Mesh) -> list[int]:
    """How many buckets had been launched when backward returned, per step."""
    step = build_step(run_config(), mesh)
    launched = []
    finish = step.buckets.finish

    def watched() -> None:
        launched.append(step.buckets.launched)
        finish()

    step.buckets.finish = watched  # type: ignore[method-assign]
    for i in range(2):
        step(microbatches_of(mesh, 1, i), RATES)
    return [*launched, len(step.buckets.buckets)]


def test_bucket_settings_are_obeyed(pool2: WorkerPool) -> None:
    for parallel, several in (({"ddp_bucket_size": 3000}, True), ({}, False)):
        config = run_config(parallel=parallel)
        step = assemble.build_step(config, ONE, Timers(0, ONE.device))
        assert (len(step.buckets.buckets) > 3) == several
    assert pool2.run(launched_before_the_end, True)[0] > 0
    assert pool2.run(launched_before_the_end, False) == [0, 0]


def launched_before_the_end(mesh: Mesh, overlap: bool) -> int:
    """Buckets whose reduction had begun when backward returned."""
    config = run_config(parallel={"overlap_grad_reduce": overlap, "ddp_bucket_size": 3000})
    step = assemble.build_step(config, mesh, Timers(0, mesh.device))
    launched = []
    finish = step.buckets.finish

    def watched() -> None:
        launched.append(step.buckets.launched)
        finish()

    step.buckets.finish = watched  # type: ignore[method-assign]
    step(microbatches_of(mesh, 1), RATES)
    return launched[0]


def test_all_buckets_are_reduced_while_backward_goes_on(pool2: WorkerPool) -> None:
    for first, second, buckets in pool2.run(gradients_arrive_in_order):
        assert first == second == buckets > 2

"""Work and time: the formula of FLOPs, peaks, and timers."""

from dataclasses import replace

import pytest
import torch

from megalith.comm.mesh import Mesh
from megalith.config.schema import LoggingConfig, PrecisionConfig, RunConfig
from megalith.train.metrics import gpt_flops, known_peak, measured_peak, peak_flops
from megalith.train.timers import Timers
from tests.models.models import model_config
from tests.pool import WorkerPool


@pytest.mark.parametrize("swiglu", [False, True])
def test_flops_are_the_formula(swiglu: bool) -> None:
    m = model_config(
        num_layers=3, hidden_size=32, ffn_hidden_size=80, num_attention_heads=4,
        num_query_groups=2, kv_channels=8, seq_length=16, padded_vocab_size=64, swiglu=swiglu,
    )  # fmt: skip
    b, s, h, f, a, layers, v = 5, 16, 32, 80, 3 if swiglu else 2, 3, 64
    q, k = 4 * 8, 2 * 8
    expected = b * s * (6 * h * f * a * layers + 6 * layers * (h * (q + 2 * k) + q * h) + 6 * h * v)
    expected += 6 * b * s**2 * q * layers
    assert gpt_flops(m, b) == expected


@pytest.mark.parametrize(
    ("name", "dtype", "tera"),
    [
        ("NVIDIA H100 80GB HBM3", torch.bfloat16, 989.0),
        ("NVIDIA H100 PCIe", torch.bfloat16, 756.0),
        ("NVIDIA H200", torch.float16, 989.0),
        ("NVIDIA A100-SXM4-80GB", torch.bfloat16, 312.0),
        ("Tesla V100-SXM2-16GB", torch.float16, 125.0),
        ("Tesla V100-SXM2-16GB", torch.bfloat16, None),
        ("NVIDIA A100-SXM4-80GB", torch.float32, None),
        ("Some Future GPU", torch.bfloat16, None),
    ],
)
def test_known_peaks(name: str, dtype: torch.dtype, tera: float | None) -> None:
    assert known_peak(name, dtype) == (None if tera is None else tera * 1e12)


def test_peak_is_what_the_user_says_or_what_is_measured() -> None:
    config = RunConfig(precision=PrecisionConfig(params_dtype="float32"))
    said = replace(config, logging=LoggingConfig(peak_tflops=2.0))
    assert peak_flops(said, torch.device("cpu")) == 2e12
    measured = peak_flops(config, torch.device("cpu"))
    assert measured is not None and measured > 1e8


def test_narrow_types_have_the_peak_of_what_multiplies_them() -> None:
    """At least about as fast as float32: products are widened where that is faster."""
    wide = measured_peak(torch.float32, seconds=0.05)
    assert measured_peak(torch.bfloat16, seconds=0.05) > 0.2 * wide


def _phases(mesh: Mesh, level: int) -> dict[str, tuple[float, float]]:
    timers = Timers(level, mesh.device)
    with timers.measure("optimizer"):
        pass
    with timers.measure("forward-compute", level=2):
        pass
    if mesh.is_main and level:
        timers._watches["optimizer"].seconds = 4.0
    elif level:
        timers._watches["optimizer"].seconds = 2.0
    return timers.across_ranks(mesh, iterations=2)


def test_timers_tell_least_and_most_of_the_ranks(pool2: WorkerPool) -> None:
    for phases in pool2.run(_phases, 1):
        assert phases == {"optimizer": (1.0, 2.0)}
    assert pool2.run(_phases, 2)[0].keys() == {"optimizer", "forward-compute"}
    assert pool2.run(_phases, 0) == [{}, {}]

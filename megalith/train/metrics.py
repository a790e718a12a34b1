"""How much work a step is, and how fast the machine could do it."""

from collections.abc import Mapping
from time import perf_counter

import torch

from megalith.config.schema import ModelConfig, RunConfig
from megalith.nn.product import widened

TERA = 1e12


def gpt_flops(model: ModelConfig, sequences: int) -> float:
    """Floating-point operations of a training step on `sequences` sequences, all ranks together.

    Megatron-LM's count for a dense GPT: forward and twice that for backward, two operations per
    multiply-add, attention at half (causal), the output layer over the padded vocabulary. Work done
    twice by recompute does not count, nor do embedding, norms and the optimizer.
    """
    m, length = model, model.seq_length
    queries = m.num_attention_heads * m.kv_channels
    keys = m.num_query_groups * m.kv_channels
    gated = m.swiglu or m.quick_geglu or m.gated_linear_unit
    mlp = m.hidden_size * m.ffn_hidden_size * (3 if gated else 2)
    projections = m.hidden_size * (queries + 2 * keys) + queries * m.hidden_size
    attention = length * queries
    layers = m.num_layers * (mlp + projections + attention)
    return 6.0 * sequences * length * (layers + m.hidden_size * m.padded_vocab_size)


GPU_PEAKS: Mapping[str, float] = {
    "GB200": 2500.0,
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100 NVL": 835.0,
    "H100": 989.0,
    "H800": 989.0,
    "GH200": 989.0,
    "A100": 312.0,
    "A800": 312.0,
    "L40S": 362.0,
    "L4": 121.0,
    "A10G": 70.0,
    "A10": 125.0,
    "A40": 150.0,
    "A30": 165.0,
    "V100": 125.0,
    "T4": 65.0,
    "RTX 4090": 165.0,
    "RTX 3090": 71.0,
    "MI300X": 1307.0,
    "MI325X": 1307.0,
    "MI250X": 191.5,
}
"""Dense TFLOP/s in bfloat16 or float16 with float32 sums, from the makers' data sheets.

MI250X is one of its two halves, which is what a rank gets. V100 and T4 have it in float16 only.
"""

FLOAT16_ONLY = ("V100", "T4")


def known_peak(device_name: str, dtype: torch.dtype) -> float | None:
    """FLOP/s of a GPU by its name, or None where neither name nor type is in the table."""
    words = device_name.replace("-", " ").split()
    for name, peak in GPU_PEAKS.items():
        if all(word in words for word in name.split()):
            halves = (torch.float16,) if name in FLOAT16_ONLY else (torch.float16, torch.bfloat16)
            return peak * TERA if dtype in halves else None
    return None


def peak_flops(config: RunConfig, device: torch.device) -> float | None:
    """FLOP/s that one processor could reach at most, the reference of MFU; None where unknown.

    What `--peak-tflops` says; else on a CPU what this rank's threads reach in a matrix product of
    the run's type, measured now; else the data sheet's number for a GPU in the table.
    """
    if config.logging.peak_tflops is not None:
        return config.logging.peak_tflops * TERA
    dtype = getattr(torch, config.precision.params_dtype)
    if device.type == "cpu":
        return measured_peak(dtype)
    return known_peak(torch.get_device_module(device).get_device_name(device), dtype)


def measured_peak(dtype: torch.dtype, seconds: float = 0.2) -> float:
    """FLOP/s of square matrix products on the CPU, the best of growing sizes within `seconds`.

    Where products of `dtype` are taken in another (nn.product), it is that one's.
    """
    size, best = 256, 0.0
    end = perf_counter() + seconds
    while size <= 4096:
        left, right, out = (widened(torch.ones(size, size, dtype=dtype)) for _ in range(3))
        torch.mm(left, right, out=out)
        for _ in range(3):
            start = perf_counter()
            torch.mm(left, right, out=out)
            best = max(best, 2.0 * size**3 / (perf_counter() - start))
        size *= 2
        if perf_counter() + 4 * 2.0 * size**3 / best > end:
            break
    return best

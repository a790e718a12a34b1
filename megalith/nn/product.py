"""Matrix products of narrow types on x86 processors that have no instructions for them.

Such a processor multiplies bfloat16 and float16 element by element, tens of times slower than
float32. There the factors are widened first, which loses nothing: float32 holds every product of
theirs exactly.
"""

import functools

import torch


def widened(factor: torch.Tensor) -> torch.Tensor:
    """A factor in the dtype in which this device multiplies it: its own, or float32."""
    return factor.to(_product_dtype(factor.dtype, factor.device.type))


@functools.cache
def _product_dtype(dtype: torch.dtype, device_type: str) -> torch.dtype:
    needed = {torch.bfloat16: ("avx512_bf16", "amx_bf16"), torch.float16: ("avx512_fp16",)}
    if device_type != "cpu" or dtype not in needed:
        return dtype
    present = torch.cpu.get_capabilities()
    able = present["architecture"] != "x86_64" or any(present[name] for name in needed[dtype])
    return dtype if able else torch.float32

"""Products of narrow types: widened where the processor has no instructions for them."""

from typing import Any

import pytest
import torch

from megalith.nn import product
from megalith.nn.initial import Initial
from megalith.nn.linear import Linear

NONE = {"architecture": "x86_64", "avx512_bf16": False, "amx_bf16": False, "avx512_fp16": False}


@pytest.mark.parametrize(
    ("present", "dtype", "expected"),
    [
        ({}, torch.bfloat16, torch.float32),
        ({}, torch.float16, torch.float32),
        ({}, torch.float32, torch.float32),
        ({}, torch.float64, torch.float64),
        ({"avx512_bf16": True}, torch.bfloat16, torch.bfloat16),
        ({"avx512_bf16": True}, torch.float16, torch.float32),
        ({"amx_bf16": True}, torch.bfloat16, torch.bfloat16),
        ({"avx512_fp16": True}, torch.float16, torch.float16),
        ({"architecture": "aarch64"}, torch.bfloat16, torch.bfloat16),
    ],
)
def test_widening_follows_the_processor(
    present: dict[str, Any],
    dtype: torch.dtype,
    expected: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: NONE | present)
    product._product_dtype.cache_clear()
    try:
        assert product.widened(torch.ones(2, dtype=dtype)).dtype == expected
    finally:
        product._product_dtype.cache_clear()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_linear_of_narrow_types_rounds_once(dtype: torch.dtype) -> None:
    """Whatever multiplies: results have the type of the input, and its precision."""
    layer = Linear(64, 32, Initial("constant", 0.0), True, dtype)
    generator = torch.Generator().manual_seed(1)
    layer.weight.data.copy_(torch.randn(32, 64, generator=generator))
    assert layer.bias is not None
    layer.bias.data.zero_()
    x = torch.randn(10, 64, generator=generator).to(dtype).requires_grad_()
    y = layer(x)
    y.sum().backward()
    expected = x.detach().double() @ layer.weight.detach().double().T
    assert y.dtype == dtype and x.grad is not None and x.grad.dtype == dtype
    error = (y.detach().double() - expected).abs().max() / expected.abs().max()
    assert error < 2 * torch.finfo(dtype).eps

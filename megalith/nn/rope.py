"""Rotary position embedding (Su et al. 2021): queries and keys turned by their position."""

import math
from dataclasses import dataclass

import torch

from megalith.config.schema import ModelConfig
from megalith.nn.gradient import at_least_float32


@dataclass(frozen=True)
class RotaryPhases:
    """Cosine and sine of each token's angles, [t, 1, d/2] each, for the first d of a head."""

    cosine: torch.Tensor
    sine: torch.Tensor
    interleaved: bool


def rotary_phases(
    positions: torch.Tensor, config: ModelConfig, dtype: torch.dtype
) -> RotaryPhases | None:
    """The phases of tokens at `positions` [t]; None when the model has no rotary embedding."""
    if config.position_embedding_type != "rope":
        return None
    frequencies = _frequencies(config, positions.device)  # [d/2]
    angles = positions[:, None].to(torch.float64) * frequencies  # [t, d/2]
    precision = at_least_float32(dtype)
    return RotaryPhases(
        angles.cos().to(precision).unsqueeze(1),
        angles.sin().to(precision).unsqueeze(1),
        config.rotary_interleaved,
    )


def rotate(x: torch.Tensor, phases: RotaryPhases) -> torch.Tensor:
    """Turns x [t, heads, head_dim] by its tokens' phases, in at least float32.

    A pair is (i, i + d/2), or (2i, 2i + 1) when interleaved.
    """
    half = phases.cosine.shape[-1]
    turned, rest = x[..., : 2 * half], x[..., 2 * half :]
    pairs = turned.unflatten(-1, (half, 2) if phases.interleaved else (2, half))
    dim = -1 if phases.interleaved else -2
    first, second = pairs.unbind(dim)
    rotated = torch.stack(
        (
            first * phases.cosine - second * phases.sine,
            second * phases.cosine + first * phases.sine,
        ),
        dim,
    )
    return torch.cat((rotated.flatten(-2).to(x.dtype), rest), -1)


def _frequencies(config: ModelConfig, device: torch.device) -> torch.Tensor:
    """Radians per position of each pair, float64 [d/2]."""
    assert config.kv_channels is not None
    width = int(config.kv_channels * config.rotary_percent) // 2 * 2
    exponents = torch.arange(0, width, 2, dtype=torch.float64, device=device) / width
    frequencies = float(config.rotary_base) ** -exponents
    if config.use_rope_scaling:
        frequencies = _llama3_scaled(frequencies, config.rope_scaling_factor)
    if config.rotary_seq_len_interpolation_factor:
        frequencies = frequencies / config.rotary_seq_len_interpolation_factor
    return frequencies


def _llama3_scaled(frequencies: torch.Tensor, factor: float) -> torch.Tensor:
    """Llama 3.1's stretching of long wavelengths (its original context is 8,192 tokens)."""
    context, low, high = 8192, 1.0, 4.0
    turns = context * frequencies / (2 * math.pi)
    blend = ((turns - low) / (high - low)).clamp(0.0, 1.0)
    return frequencies * (blend + (1.0 - blend) / factor)

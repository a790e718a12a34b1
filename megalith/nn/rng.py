"""Dropout keyed by position: a mask is a hash of where an element is, and of nothing else.

The mask of an element depends on (seed, sample number, layer, place in the layer, row, column).
So it is the same under any layout, micro-batch size, recomputation or resume, and there is no
generator whose state would have to be saved.

The mixing function is the 32-bit finaliser "lowbias32" found by C. Wellons' hash prospector.
"""

from enum import IntEnum

import torch

from megalith.nn.layout import TokenLayout


class DropoutPlace(IntEnum):
    """The places of a layer where dropout is applied. The embedding counts as layer 0."""

    EMBEDDING = 0
    ATTENTION_WEIGHTS = 1
    ATTENTION_OUTPUT = 2
    MLP_OUTPUT = 3


def mix(x: torch.Tensor) -> torch.Tensor:
    """Scrambles the bits of an int32 tensor, elementwise."""
    # PyTorch shifts the sign in from the left; the masks make these shifts logical ones.
    x = (x ^ ((x >> 16) & 0xFFFF)) * 0x7FEB352D
    x = (x ^ ((x >> 15) & 0x1FFFF)) * _signed(0x846CA68B)
    return x ^ ((x >> 16) & 0xFFFF)


def row_keys(
    seed: torch.Tensor, layer: int, place: DropoutPlace, layout: TokenLayout
) -> torch.Tensor:
    """The key of each token at a place of a layer.

    `seed` is an int64 tensor of no dims, so that compiled code sees no number.
    Returns int32 [b, s].
    """
    key = mix(_fold(seed) ^ _signed(0x9E3779B9))
    key = mix(key ^ (layer * len(DropoutPlace) + place + 1))
    samples = mix(_fold(layout.sample_numbers) ^ key)  # [b]
    return mix(samples[:, None] ^ column_keys(layout.places)[None, :])


def column_keys(indices: torch.Tensor) -> torch.Tensor:
    """The key of each index of a dim: int32 of the same shape."""
    return mix(indices.to(torch.int32) + _signed(0x85EBCA6B))


def keep_mask(rows: torch.Tensor, columns: torch.Tensor, probability: float) -> torch.Tensor:
    """Which elements survive dropout.

    `rows` [..., r] and `columns` [..., c] are keys that broadcast; returns bool [..., r, c], False
    with the given probability.
    """
    bits = mix(rows.unsqueeze(-1) ^ columns.unsqueeze(-2))
    return bits >= round((probability - 0.5) * 2**32)


def dropout(
    x: torch.Tensor, probability: float, rows: torch.Tensor, column_start: int = 0
) -> torch.Tensor:
    """Zeroes elements of x [t, h] with the given probability and scales the rest up.

    `rows` are the tokens' keys [b, s]; the columns are the global ones from `column_start` on.
    """
    columns = torch.arange(column_start, column_start + x.shape[-1], device=x.device)
    keep = keep_mask(rows.reshape(-1), column_keys(columns), probability)
    return torch.where(keep, x / (1.0 - probability), 0.0)


def _fold(x: torch.Tensor) -> torch.Tensor:
    """Both halves of an int64 in one int32."""
    return mix(_low(x)) ^ _low(x >> 32)


def _low(x: torch.Tensor) -> torch.Tensor:
    return (((x & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000).to(torch.int32)


def _signed(x: int) -> int:
    return x - (1 << 32) if x >= 1 << 31 else x

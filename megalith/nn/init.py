"""Initial values that depend on the seed, a parameter's name and the position, never on layout.

The global tensor is drawn in blocks of full rows, each block from a seed of its own, so that a
rank draws the blocks that it holds a part of and no others.
"""

import hashlib
from collections.abc import Mapping

import torch
from torch import nn

from megalith.nn.shard import Declaration, Initial, Rectangle, ShardSpec, declarations

_BLOCK_ELEMENTS = 1 << 18


@torch.no_grad()
def initialise(model: nn.Module, seed: int, coordinate: Mapping[str, int]) -> None:
    """Fills every parameter of `model` with this rank's part of its initial global tensor.

    Values are drawn in float32 and then cast, so that runs in different dtypes start alike.
    Vocabulary padding becomes zero.
    """
    parameters = dict(model.named_parameters())
    for name, declaration in declarations(model).items():
        _fill(parameters[name], f"{seed}/{name}", declaration, coordinate)


def _fill(
    parameter: torch.Tensor, key: str, declaration: Declaration, coordinate: Mapping[str, int]
) -> None:
    if declaration.initial.distribution == "constant":
        parameter.fill_(declaration.initial.value)
        return
    parameter.zero_()
    for box in declaration.spec.rectangles(coordinate):
        _fill_rectangle(parameter, key, declaration.spec, declaration.initial, box)


def _fill_rectangle(
    parameter: torch.Tensor, key: str, spec: ShardSpec, initial: Initial, box: Rectangle
) -> None:
    rows, *row_shape = spec.global_shape
    block_rows = max(1, _BLOCK_ELEMENTS // max(1, torch.Size(row_shape).numel()))
    first, last = box.global_offset[0], box.global_offset[0] + box.shape[0]
    columns = tuple(
        slice(start, start + size)
        for start, size in zip(box.global_offset[1:], box.shape[1:], strict=True)
    )
    target = box.of(parameter)
    for block in range(first // block_rows, -(-last // block_rows)):
        start = block * block_rows
        stop = min(start + block_rows, rows)
        values = _draw((stop - start, *row_shape), f"{key}/{block}", initial)
        low, high = max(first, start), min(last, stop)
        target[low - first : high - first].copy_(values[low - start : high - start][:, *columns])


def _draw(shape: tuple[int, ...], key: str, initial: Initial) -> torch.Tensor:
    digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest, "little"))
    values = torch.empty(shape, dtype=torch.float32)
    if initial.distribution == "normal":
        return values.normal_(0.0, initial.value, generator=generator)
    return values.uniform_(-initial.value, initial.value, generator=generator)

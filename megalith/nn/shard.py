"""Which part of a global tensor a rank holds.

Initialisation, gradient reduction, clipping, weight-decay groups and checkpoints read these
specifications; none of them knows a layer's name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

Role = Literal["weight", "bias", "norm", "qk_norm", "vocabulary"]
"""What a parameter is for; "vocabulary" are the word embedding and the output layer."""


@dataclass(frozen=True)
class Rectangle:
    """A box of a local tensor and where it lies in the global one.

    `local_offset`, `global_offset` and `shape` have one entry per dim.
    """

    local_offset: tuple[int, ...]
    global_offset: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, local: torch.Tensor) -> torch.Tensor:
        """The view of `local` that this rectangle names."""
        bounds = zip(self.local_offset, self.shape, strict=True)
        return local[tuple(slice(start, start + size) for start, size in bounds)]


@dataclass(frozen=True)
class ShardPart:
    """A run of `size` indices of the cut dim, divided evenly over a mesh axis.

    `axis` None means that every rank holds all of it. `replication` consecutive ranks of the
    axis hold the same piece, so the axis has `cuts * replication` ranks.
    """

    size: int
    axis: str | None = None
    cuts: int = 1
    replication: int = 1

    def piece(self, coordinate: Mapping[str, int]) -> tuple[int, int]:
        """Start and length of this rank's piece, counted from the start of the part."""
        length = self.size // self.cuts
        index = coordinate[self.axis] // self.replication if self.axis else 0
        return index * length, length


@dataclass(frozen=True)
class ShardSpec:
    """The global shape of a parameter and how its dim `dim` is cut.

    The parts lie one after the other along `dim`. Together they may exceed the global shape:
    what sticks out is padding, rows that exist on a rank and nowhere else (vocabulary padding).
    `gradient_axis` names a mesh axis over which each rank has only a partial gradient (norms and
    biases under sequence parallelism). `role` decides weight decay and learning rate.
    """

    global_shape: tuple[int, ...]
    parts: tuple[ShardPart, ...]
    dim: int = 0
    gradient_axis: str | None = None
    role: Role = "weight"

    @staticmethod
    def whole(*shape: int, role: Role = "weight") -> "ShardSpec":
        """A parameter that every rank holds in full."""
        return ShardSpec(shape, (ShardPart(shape[0]),), role=role)

    def local_shape(self) -> tuple[int, ...]:
        """The shape of the tensor that a rank holds, padding included."""
        length = sum(part.size // part.cuts for part in self.parts)
        return (*self.global_shape[: self.dim], length, *self.global_shape[self.dim + 1 :])

    def rectangles(self, coordinate: Mapping[str, int]) -> list[Rectangle]:
        """The boxes of the local tensor that lie within the global shape, in order."""
        boxes = []
        local_start = global_start = 0
        for part in self.parts:
            offset, length = part.piece(coordinate)
            start = global_start + offset
            real = min(length, self.global_shape[self.dim] - start)
            if real > 0:
                boxes.append(self._box(local_start, start, real))
            local_start += length
            global_start += part.size
        return boxes

    def _box(self, local_start: int, global_start: int, length: int) -> Rectangle:
        zeros = (0,) * len(self.global_shape)
        return Rectangle(
            _replaced(zeros, self.dim, local_start),
            _replaced(zeros, self.dim, global_start),
            _replaced(self.global_shape, self.dim, length),
        )


@dataclass(frozen=True)
class Initial:
    """How a parameter's global tensor starts: a distribution and its one number.

    "normal" has standard deviation `value`, "uniform" runs from -`value` to `value`, "constant"
    is `value` everywhere.
    """

    distribution: Literal["normal", "uniform", "constant"]
    value: float


@dataclass(frozen=True)
class Declaration:
    """What is known of a parameter besides its local values."""

    spec: ShardSpec
    initial: Initial


@dataclass(frozen=True)
class ShardedTensor:
    """A local tensor with the specification of its place in the global one."""

    tensor: torch.Tensor
    spec: ShardSpec


def declare(
    module: nn.Module, name: str, spec: ShardSpec, initial: Initial, dtype: torch.dtype
) -> nn.Parameter:
    """Registers the local part of a parameter on `module`, with its place and initial values."""
    parameter = nn.Parameter(torch.empty(spec.local_shape(), dtype=dtype))
    module.register_parameter(name, parameter)
    module.__dict__.setdefault("declarations", {})[name] = Declaration(spec, initial)
    return parameter


def declarations(model: nn.Module) -> dict[str, Declaration]:
    """What was declared of every parameter of a model, by global name, in the model's order."""
    found: dict[str, Declaration] = {}
    for prefix, module in model.named_modules():
        for name, declaration in module.__dict__.get("declarations", {}).items():
            found[f"{prefix}.{name}" if prefix else name] = declaration
    return found


def sharded_parameters(model: nn.Module) -> dict[str, ShardedTensor]:
    """The parameters as a checkpoint names them, "model/<global name>"."""
    named = dict(model.named_parameters())
    return {
        f"model/{name}": ShardedTensor(named[name].detach(), declaration.spec)
        for name, declaration in declarations(model).items()
    }


def _replaced(values: tuple[int, ...], index: int, value: int) -> tuple[int, ...]:
    return (*values[:index], value, *values[index + 1 :])

"""Small global tensors and the parts of them that a rank holds."""

import torch

from megalith.comm.mesh import Mesh, ParallelLayout
from megalith.nn.shard import ShardedTensor, ShardPart, ShardSpec

ALONE = Mesh(ParallelLayout(), 0, torch.device("cpu"), {})

SPECS = {
    "whole": ShardSpec.whole(6, 4),
    "vector": ShardSpec.whole(5, role="bias"),
    "rows": ShardSpec((8, 3), (ShardPart(8, "tp", 2),)),
    "columns": ShardSpec((3, 8), (ShardPart(8, "tp", 2),), dim=1),
    "two parts": ShardSpec((12, 2), (ShardPart(8, "tp", 2), ShardPart(4, "tp", 2))),
    "replicated": ShardSpec((4, 2), (ShardPart(4, "tp", 1, replication=2),)),
}
"""As they are cut at tp 2."""


def at_one_rank(spec: ShardSpec) -> ShardSpec:
    """The same global tensor, held whole."""
    parts = tuple(ShardPart(part.size) for part in spec.parts)
    return ShardSpec(spec.global_shape, parts, spec.dim)


def global_tensor(name: str, step: int = 0) -> torch.Tensor:
    """The values of a tensor, different for each name and step."""
    seed = sum(map(ord, name)) + 1000 * step
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(SPECS[name].global_shape, generator=generator, dtype=torch.float64)


def filled(mesh: Mesh, cut: bool, step: int = 0) -> dict[str, ShardedTensor]:
    """This rank's parts with their values, cut over tp or whole."""
    tensors = empty(mesh, cut)
    for name, tensor in tensors.items():
        for box in tensor.spec.rectangles(mesh.coordinates):
            bounds = zip(box.global_offset, box.shape, strict=True)
            source = global_tensor(name, step)[tuple(slice(o, o + n) for o, n in bounds)]
            box.of(tensor.tensor).copy_(source)
    return tensors


def empty(mesh: Mesh, cut: bool) -> dict[str, ShardedTensor]:
    """The same without values."""
    specs = {name: spec if cut else at_one_rank(spec) for name, spec in SPECS.items()}
    return {
        name: ShardedTensor(torch.full(spec.local_shape(), -1.0, dtype=torch.float64), spec)
        for name, spec in specs.items()
    }


def assert_filled(tensors: dict[str, ShardedTensor], mesh: Mesh, cut: bool, step: int = 0) -> None:
    """Every element is the one of that step."""
    for name, expected in filled(mesh, cut, step).items():
        assert torch.equal(tensors[name].tensor, expected.tensor), name

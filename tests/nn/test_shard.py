"""Shards tile the global tensor, and initial values are those of the whole."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from megalith.nn.init import initialise
from megalith.nn.shard import Initial, ShardPart, ShardSpec, declare

NORMAL = Initial("normal", 1.0)


@st.composite
def cut_specs(draw: st.DrawFn) -> tuple[ShardSpec, int]:
    """A spec of one to three parts cut over tp, as of fused QKV, with the size of tp."""
    tp = draw(st.sampled_from([1, 2, 4]))
    parts = []
    for _ in range(draw(st.integers(1, 3))):
        replication = draw(st.sampled_from([r for r in (1, 2, 4) if tp % r == 0]))
        cuts = tp // replication
        size = cuts * draw(st.integers(2, 4))
        parts.append(ShardPart(size, "tp", cuts, replication))
    rows = sum(part.size for part in parts) - draw(st.integers(0, 1))
    dim = draw(st.integers(0, 1))
    shape = (rows, 3) if dim == 0 else (3, rows)
    return ShardSpec(shape, tuple(parts), dim), tp


def _place(spec: ShardSpec, tp: int, rank: int) -> list[torch.Tensor]:
    """For each box of a rank, how often it covers each global element."""
    covered = []
    for box in spec.rectangles({"tp": rank}):
        count = torch.zeros(spec.global_shape)
        index = tuple(slice(o, o + s) for o, s in zip(box.global_offset, box.shape, strict=True))
        count[index] += 1
        assert box.of(torch.zeros(spec.local_shape())).shape == torch.Size(box.shape)
        covered.append(count)
    return covered


@given(cut_specs())
def test_every_element_is_held_as_often_as_replicated(case: tuple[ShardSpec, int]) -> None:
    spec, tp = case
    count = sum(c for rank in range(tp) for c in _place(spec, tp, rank))
    assert isinstance(count, torch.Tensor)
    start = 0
    for part in spec.parts:
        stop = min(start + part.size, spec.global_shape[spec.dim])
        piece = count.narrow(spec.dim, start, stop - start)
        assert torch.all(piece == part.replication)
        start = stop


@given(cut_specs())
def test_local_boxes_do_not_overlap(case: tuple[ShardSpec, int]) -> None:
    spec, tp = case
    for rank in range(tp):
        local = torch.zeros(spec.local_shape())
        for box in spec.rectangles({"tp": rank}):
            box.of(local).add_(1)
        assert local.max() == 1


def _initialised(spec: ShardSpec, rank: int) -> torch.Tensor:
    module = nn.Module()
    declare(module, "weight", spec, NORMAL, torch.float32)
    initialise(module, 1, {"tp": rank})
    return module.get_parameter("weight").detach()


@given(cut_specs())
def test_initial_values_of_a_piece_are_those_of_the_whole(case: tuple[ShardSpec, int]) -> None:
    spec, tp = case
    whole = _initialised(ShardSpec.whole(*spec.global_shape), 0)
    for rank in range(tp):
        local = _initialised(spec, rank)
        for box in spec.rectangles({"tp": rank}):
            index = tuple(
                slice(o, o + s) for o, s in zip(box.global_offset, box.shape, strict=True)
            )
            assert torch.equal(box.of(local), whole[index])
            box.of(local).zero_()
        assert not local.any(), "padding starts at zero"


def test_initial_values_of_many_blocks_are_those_of_the_whole() -> None:
    rows, columns = 3000, 300
    whole = _initialised(ShardSpec.whole(rows, columns), 0)
    spec = ShardSpec((rows, columns), (ShardPart(rows, "tp", 4),))
    assert torch.equal(torch.cat([_initialised(spec, rank) for rank in range(4)]), whole)
    assert whole.unique().numel() > 0.9 * whole.numel()

"""Which samples a rank gets follows from the place in the run alone."""

from typing import Any

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.comm.mesh import Mesh, ParallelLayout
from megalith.data.gpt import DocumentEnds, GPTDataset
from megalith.data.loader import MicrobatchLoader
from megalith.data.microbatch import Microbatch
from megalith.data.mock import MockSequences
from megalith.data.order import sample_order
from megalith.data.sampler import Cyclic, InOrder, Sampler


class Numbers:
    """A dataset whose microbatches only say which samples they are of."""

    def microbatch(self, samples: list[int], numbers: range) -> Microbatch:
        tokens = torch.tensor(samples)[:, None]
        return Microbatch(tokens, tokens, tokens, tokens, torch.tensor(list(numbers)), None)


def _loader(replicas: int, rank: int, sampler: Sampler, workers: int = 0) -> MicrobatchLoader:
    mesh = Mesh(ParallelLayout(dp=replicas), rank, torch.device("cpu"), {})
    dataset: Any = Numbers()
    return MicrobatchLoader(dataset, sampler, mesh, workers)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(0, 1000),
    st.booleans(),
)
def test_ranks_share_exactly_the_next_samples(
    replicas: int, micro: int, rounds: int, first: int, cyclic: bool
) -> None:
    batch = replicas * micro * rounds
    sampler = Cyclic(17, 5) if cyclic else InOrder()
    found: dict[int, int] = {}
    for rank in range(replicas):
        microbatches = _loader(replicas, rank, sampler).load(first, batch, micro)
        assert len(microbatches) == rounds
        for place, microbatch in enumerate(microbatches):
            start = first + place * micro * replicas + rank * micro
            assert microbatch.sample_numbers.tolist() == list(range(start, start + micro))
            found |= dict(
                zip(
                    microbatch.sample_numbers.tolist(),
                    microbatch.tokens[:, 0].tolist(),
                    strict=True,
                )
            )
    assert found == {n: sampler.sample(n) for n in range(first, first + batch)}


@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.tuples(st.sampled_from([1, 2, 4]), st.integers(1, 3)), min_size=1),
    rounds=st.integers(1, 2),
    cyclic=st.booleans(),
)
def test_run_resumed_at_other_sizes_goes_on_with_the_same_samples(
    sizes: list[tuple[int, int]], rounds: int, cyclic: bool
) -> None:
    """Each step has its own number of replicas and micro-batch, as after a resume."""
    source = MockSequences(50, 6)
    order = sample_order(source.lengths, np.arange(3, dtype=np.int32), 64, 300, 1)
    ends = DocumentEnds(6, mask_loss=True, reset_positions=True, hide_earlier=True)
    dataset = GPTDataset(source, order, 64, 50, ends)
    sampler: Sampler = Cyclic(len(dataset), 1) if cyclic else InOrder()
    consumed = 0
    for replicas, micro in sizes:
        batch = replicas * micro * rounds
        for rank in range(replicas):
            mesh = Mesh(ParallelLayout(dp=replicas), rank, torch.device("cpu"), {})
            loader = MicrobatchLoader(dataset, sampler, mesh, 0)
            for microbatch in loader.load(consumed, batch, micro):
                for row, number in enumerate(microbatch.sample_numbers.tolist()):
                    alone = dataset.microbatch([sampler.sample(number)], [number])
                    for name, field in vars(alone).items():
                        assert torch.equal(getattr(microbatch, name)[row], field[0]), name
        consumed += batch


def test_reading_across_the_bound_of_two_passes_makes_each_order_once() -> None:
    made: list[int] = []

    class Counting(Cyclic):
        def _permutation(self, index: int) -> Any:
            made.append(index)
            return super()._permutation(index)

    sampler = Counting(10, 3)
    for number in (9, 10, 8, 11, 7, 12):
        sampler.sample(number)
    assert made == [0, 1]


def test_reading_ahead_changes_nothing() -> None:
    plain, ahead = _loader(2, 1, InOrder()), _loader(2, 1, InOrder(), workers=2)
    for first, batch in ((0, 4), (4, 4), (8, 8), (16, 4), (0, 4)):
        here, there = plain.load(first, batch, 2), ahead.load(first, batch, 2)
        assert [m.tokens.tolist() for m in here] == [m.tokens.tolist() for m in there]
    ahead.close()


def test_each_pass_of_a_cycle_has_every_sample_once_and_its_own_order() -> None:
    sampler = Cyclic(30, 7)
    passes = [[sampler.sample(30 * p + i) for i in range(30)] for p in range(3)]
    assert all(sorted(order) == list(range(30)) for order in passes)
    assert passes[0] != passes[1] != passes[2]
    again = Cyclic(30, 7)
    assert [again.sample(30 + i) for i in range(30)] == passes[1]
    assert [Cyclic(30, 8).sample(i) for i in range(30)] != passes[0]

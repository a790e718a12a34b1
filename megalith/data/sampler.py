"""Which sample of a dataset stands at which place of a run."""

from dataclasses import dataclass
from typing import Protocol

import torch


class Sampler(Protocol):
    """Maps consumed-sample numbers to samples."""

    def sample(self, number: int) -> int: ...


@dataclass(frozen=True)
class InOrder:
    """Sample n at place n: the dataset's own order already is a shuffled one."""

    def sample(self, number: int) -> int:
        return number


class Cyclic:
    """Pass after pass over the dataset, each shuffled by (seed, pass) alone.

    Megatron-LM's permutation depends on the number of replicas; this one does not, so that a run
    goes on with the same samples at another layout.
    """

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed = samples, seed
        self._pass: tuple[int, torch.Tensor] | None = None

    def sample(self, number: int) -> int:
        index, place = divmod(number, self._samples)
        order = self._pass
        if order is None or order[0] != index:
            order = self._pass = (index, self._permutation(index))
        return int(order[1][place])

    def _permutation(self, index: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._seed * 1_000_003 + index)
        return torch.randperm(self._samples, generator=generator)

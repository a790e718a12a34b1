"""Which sample of a dataset stands at which place of a run."""

import functools
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt


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
        # Two passes are kept, since batches read ahead at once may lie on both sides of a bound.
        self._order = functools.lru_cache(maxsize=2)(self._permutation)

    def sample(self, number: int) -> int:
        index, place = divmod(number, self._samples)
        return int(self._order(index)[place])

    def _permutation(self, index: int) -> npt.NDArray[np.int64]:
        """From numpy's frozen generator, so that no new version gives another order."""
        return np.random.RandomState([self._seed, index]).permutation(self._samples)

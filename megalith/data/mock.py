"""Made-up sequences, as Megatron-LM makes them, to try a run without a corpus (`--mock-data`)."""

import numpy as np
import numpy.typing as npt

DOCUMENTS = 100_000
LONGEST = 4096


class MockSequences:
    """Sequences 1, 2, 3, … modulo the vocabulary, each closed by the end-of-document token."""

    name = "--mock-data"

    def __init__(self, vocab_size: int, eod: int) -> None:
        self._vocab_size, self._eod = vocab_size, eod
        random = np.random.default_rng(0)
        self.lengths: npt.NDArray[np.int32] = random.integers(
            1, LONGEST, size=DOCUMENTS, dtype=np.int32
        )

    def read(self, sequence: int, start: int, stop: int) -> npt.NDArray[np.generic]:
        """The ids of a sequence from `start` to before `stop`."""
        tokens = np.arange(start + 1, stop + 1, dtype=np.int64) % self._vocab_size
        if stop == self.lengths[sequence]:
            tokens[-1:] = self._eod
        return tokens

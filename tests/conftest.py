"""Fixtures for all rooms: warm pools of gloo workers, which start at first use."""

from collections.abc import Iterator

import pytest
import torch

from tests.pool import WorkerPool, workers

# Models in tests are tiny: a second thread costs more than it brings, most of all on busy cores.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def pool2() -> Iterator[WorkerPool]:
    """Two ranks."""
    pool = workers(2)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def pool4() -> Iterator[WorkerPool]:
    """Four ranks."""
    pool = workers(4)
    yield pool
    pool.close()

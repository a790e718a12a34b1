"""Microbatches of this rank, read ahead by threads."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from megalith.comm.mesh import Mesh
from megalith.data.gpt import GPTDataset
from megalith.data.microbatch import Microbatch
from megalith.data.sampler import Sampler


@dataclass(frozen=True)
class _Request:
    """A global batch: its first consumed-sample number, and its sizes in sequences."""

    first: int
    global_batch_size: int
    micro_batch_size: int

    def following(self) -> "_Request":
        return _Request(
            self.first + self.global_batch_size, self.global_batch_size, self.micro_batch_size
        )


class MicrobatchLoader:
    """Gives the microbatches of any global batch; which samples they hold follows from it alone.

    Microbatch k of data-parallel rank r holds the samples from k·m·D + r·m on, where m is the
    micro-batch size and D the number of replicas. After each call the batch that comes next in
    training is read ahead by `workers` threads (0: nothing is).
    """

    def __init__(self, dataset: GPTDataset, sampler: Sampler, mesh: Mesh, workers: int) -> None:
        self._dataset, self._sampler = dataset, sampler
        self._replicas, self._replica = mesh.size("dp"), mesh.coordinate("dp")
        self._threads = ThreadPoolExecutor(workers) if workers else None
        self._ahead: tuple[_Request, list[Future[Microbatch]]] | None = None

    def load(
        self, first_sample: int, global_batch_size: int, micro_batch_size: int
    ) -> list[Microbatch]:
        """This rank's microbatches of the global batch that begins at a consumed-sample number."""
        request = _Request(first_sample, global_batch_size, micro_batch_size)
        if self._threads is None:
            return [self._read(numbers) for numbers in self._numbers(request)]
        ahead = self._ahead
        waiting = ahead[1] if ahead and ahead[0] == request else self._submit(request)
        batch = [future.result() for future in waiting]
        self._ahead = (request.following(), self._submit(request.following()))
        return batch

    def close(self) -> None:
        """Ends the threads."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def _submit(self, request: _Request) -> list[Future[Microbatch]]:
        assert self._threads is not None
        return [self._threads.submit(self._read, numbers) for numbers in self._numbers(request)]

    def _numbers(self, request: _Request) -> list[range]:
        """The consumed-sample numbers of each of this rank's microbatches."""
        size = request.micro_batch_size
        stride = size * self._replicas
        assert request.global_batch_size % stride == 0, (request, self._replicas)
        firsts = range(
            request.first + self._replica * size, request.first + request.global_batch_size, stride
        )
        return [range(first, first + size) for first in firsts]

    def _read(self, numbers: Sequence[int]) -> Microbatch:
        samples = [self._sampler.sample(number) for number in numbers]
        return self._dataset.microbatch(samples, numbers)

"""Gradients in flat buckets, summed over ranks while backward goes on.

The parameters of a bucket are views of one contiguous buffer, and so are their gradients, which
are at least float32. A bucket is reduced as soon as its last gradient of the last microbatch is
in. All ranks launch the buckets in one fixed order, and a gradient that never comes counts as
zeros, so that nobody waits for it.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import nn

from megalith.comm.mesh import Mesh
from megalith.nn.gradient import SinkModule, at_least_float32
from megalith.nn.shard import ShardSpec
from megalith.optim.groups import ParameterGroup

_ALIGNMENT = 64
"""Elements to which each parameter's start is aligned in its bucket: a cache line at least."""


@dataclass(frozen=True)
class Entry:
    """A parameter's place in its bucket."""

    name: str
    parameter: nn.Parameter
    spec: ShardSpec
    start: int

    def of(self, flat: torch.Tensor) -> torch.Tensor:
        """The parameter's values, in its shape, in a flat tensor laid out like the bucket."""
        size = self.parameter.numel()
        return flat[self.start : self.start + size].view(self.parameter.shape)


@dataclass
class Bucket:
    """Parameters of one dtype and optimizer group, with their gradients, in flat buffers."""

    group: ParameterGroup
    entries: list[Entry]
    weights: torch.Tensor
    gradients: torch.Tensor
    expected: Counter[nn.Parameter]
    arrived: Counter[nn.Parameter] = field(default_factory=Counter)
    reduction: dist.Work | None = None

    @property
    def complete(self) -> bool:
        return self.arrived == self.expected


class GradientBuckets:
    """The gradients of a model: the sink of its large ones, and collector of the others.

    Between `start` and `finish` lies one step: any number of backwards, of which the last is
    announced by `expect_last`. Afterwards each bucket's `gradients` hold the sum over the ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        specs: Mapping[str, ShardSpec],
        group_of: Callable[[ShardSpec], ParameterGroup],
        mesh: Mesh,
        bucket_size: int,
        overlap: bool,
    ) -> None:
        self._mesh_group = mesh.group("dp", "cp")
        self._overlap = overlap
        self._last = False
        self.launched = 0
        named = dict(model.named_parameters())
        uses = Counter(p for _, p in model.named_parameters(remove_duplicate=False))
        self.buckets = [
            _build_bucket(group, [(name, named[name], specs[name]) for name in names], uses)
            for group, names in _planned(named, specs, group_of, bucket_size)
        ]
        self._places = {e.parameter: (b, e) for b in self.buckets for e in b.entries}
        self._connect(model)

    def entries(self) -> Iterator[tuple[Bucket, Entry]]:
        """Every parameter with its bucket."""
        return ((bucket, entry) for bucket in self.buckets for entry in bucket.entries)

    def start(self) -> None:
        """Clears the gradients for a new step."""
        self._last, self.launched = False, 0
        for bucket in self.buckets:
            bucket.gradients.zero_()
            bucket.arrived.clear()

    def expect_last(self) -> None:
        """The next backward is the step's last: buckets are reduced as they fill."""
        self._last = True
        for bucket in self.buckets:
            bucket.arrived.clear()

    def finish(self) -> None:
        """Reduces what is left and waits for all of it."""
        while self.launched < len(self.buckets):
            self._launch_next()
        for bucket in self.buckets:
            if bucket.reduction is not None:
                bucket.reduction.wait()
                bucket.reduction = None

    def add(self, weight: nn.Parameter, accumulate: Callable[[torch.Tensor], None]) -> None:
        """Takes a gradient of a large weight (`nn.gradient.GradientSink`)."""
        bucket, entry = self._places[weight]
        accumulate(entry.of(bucket.gradients))
        self._note_arrival(bucket, weight)

    def _connect(self, model: nn.Module) -> None:
        sunk = set()
        for module in model.modules():
            if isinstance(module, SinkModule):
                module.sink = self
                sunk.add(module.get_parameter("weight"))
        for parameter in set(self._places) - sunk:
            parameter.register_post_accumulate_grad_hook(self._collect)

    def _collect(self, parameter: torch.Tensor) -> None:
        assert isinstance(parameter, nn.Parameter) and parameter.grad is not None
        bucket, entry = self._places[parameter]
        entry.of(bucket.gradients).add_(parameter.grad)
        parameter.grad = None
        self._note_arrival(bucket, parameter)

    def _note_arrival(self, bucket: Bucket, parameter: nn.Parameter) -> None:
        bucket.arrived[parameter] += 1
        if not (self._last and self._overlap):
            return
        while self.launched < len(self.buckets) and self.buckets[self.launched].complete:
            self._launch_next()

    def _launch_next(self) -> None:
        bucket = self.buckets[self.launched]
        self.launched += 1
        if self._mesh_group is not None:
            bucket.reduction = dist.all_reduce(
                bucket.gradients, group=self._mesh_group, async_op=True
            )


def _planned(
    named: Mapping[str, nn.Parameter],
    specs: Mapping[str, ShardSpec],
    group_of: Callable[[ShardSpec], ParameterGroup],
    bucket_size: int,
) -> list[tuple[ParameterGroup, list[str]]]:
    """The names of each bucket, in the order in which backward completes them."""
    done: list[tuple[ParameterGroup, list[str]]] = []
    open_: dict[tuple[ParameterGroup, torch.dtype], list[str]] = {}
    filled: Counter[tuple[ParameterGroup, torch.dtype]] = Counter()
    for name in reversed(list(named)):
        key = (group_of(specs[name]), named[name].dtype)
        open_.setdefault(key, []).append(name)
        filled[key] += named[name].numel()
        if filled[key] >= bucket_size:
            done.append((key[0], open_.pop(key)))
            del filled[key]
    return done + [(key[0], names) for key, names in open_.items()]


def _build_bucket(
    group: ParameterGroup,
    members: Sequence[tuple[str, nn.Parameter, ShardSpec]],
    uses: Counter[nn.Parameter],
) -> Bucket:
    entries, size = [], 0
    for name, parameter, spec in members:
        entries.append(Entry(name, parameter, spec, size))
        size += -(-parameter.numel() // _ALIGNMENT) * _ALIGNMENT
    first = entries[0].parameter
    weights = torch.zeros(size, dtype=first.dtype, device=first.device)
    gradients = torch.zeros(size, dtype=at_least_float32(first.dtype), device=first.device)
    for entry in entries:
        view = entry.of(weights)
        view.copy_(entry.parameter.detach())
        entry.parameter.data = view
    expected = Counter({entry.parameter: uses[entry.parameter] for entry in entries})
    return Bucket(group, entries, weights, gradients, expected)

"""How a rank starts: its device, its threads, its way to the other ranks."""

import os
import socket
from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from megalith.comm.machine import threads_per_rank
from megalith.comm.mesh import Mesh, ParallelLayout
from megalith.comm.place import Place
from megalith.config.schema import ParallelConfig
from megalith.errors import MegalithError


@dataclass(frozen=True)
class Started:
    """A rank that can reach all others, and what the user should know about how."""

    mesh: Mesh
    notices: list[str]


def start(parallel: ParallelConfig) -> Started:
    """Joins this process to the run that the environment describes; every rank calls it once.

    Raises MegalithError for a host with fewer GPUs than ranks.
    """
    place = Place.from_environment(os.environ)
    torch.set_flush_denormal(True)  # before threads start: they inherit it
    torch.set_num_threads(
        parallel.num_threads or threads_per_rank(place.local_world_size, os.environ)
    )
    device = _device(place)
    notices = []
    if place.world_size > 1:
        backend = parallel.distributed_backend or _default_backend(device)
        if backend == "nccl" and device.type == "cpu":
            backend = "gloo"
            notices.append(
                "--distributed-backend nccl needs GPUs, and there is none here: ranks talk by gloo"
            )
        _join(place, backend, parallel.distributed_timeout_minutes, os.environ)
    return Started(Mesh.create(_layout(parallel, place.world_size), device), notices)


def _device(place: Place) -> torch.device:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type != "cuda":  # others lack float64 or collectives
        return torch.device("cpu")
    found = torch.accelerator.device_count()
    if place.local_rank >= found:
        raise MegalithError(
            f"{place.local_world_size} ranks were started on {socket.gethostname()}, which shows "
            f"{found} GPUs, and two ranks cannot share one: rank {place.rank} has none. Start at "
            f"most {found} there (--nproc-per-node {found}), or hide the GPUs to train on the "
            f"CPU (CUDA_VISIBLE_DEVICES=)."
        )
    torch.accelerator.set_device_index(place.local_rank)
    return torch.device(accelerator.type, place.local_rank)


def _default_backend(device: torch.device) -> str:
    return "gloo" if device.type == "cpu" else "nccl"


def _join(place: Place, backend: str, minutes: int, environment: MutableMapping[str, str]) -> None:
    if place.local_world_size == place.world_size and (name := _loopback()):
        # Otherwise gloo looks for the address of our host name, which may resolve to nothing.
        environment.setdefault("GLOO_SOCKET_IFNAME", name)
    dist.init_process_group(
        backend,
        timeout=timedelta(minutes=minutes),
        rank=place.rank,
        world_size=place.world_size,
    )


def _loopback() -> str | None:
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), None)


def _layout(parallel: ParallelConfig, world_size: int) -> ParallelLayout:
    """Data parallelism takes the ranks that the other axes leave."""
    tp = parallel.tensor_model_parallel_size
    pp = parallel.pipeline_model_parallel_size
    cp = parallel.context_parallel_size
    return ParallelLayout(pp=pp, dp=world_size // (tp * pp * cp), cp=cp, tp=tp)

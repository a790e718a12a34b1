"""How a rank starts."""

import json
import re
from datetime import timedelta
from typing import Any

import pytest
import torch

from megalith.comm import launch
from megalith.comm.launch import _device
from megalith.comm.machine import threads_per_rank
from megalith.comm.place import Place
from megalith.config.schema import ParallelConfig
from megalith.errors import MegalithError
from tests.comm.ranks import Ranks
from tests.comm.scripts import endings

on_cpu = pytest.mark.skipif(torch.accelerator.is_available(), reason="says what is so without GPUs")


def started(world_size: int, parallel: ParallelConfig) -> tuple[list[dict[str, Any]], list[str]]:
    """The facts that each rank tells, and the notices of all."""
    statuses, errors = Ranks(endings.tell_how_it_started, world_size, parallel=parallel).wait()
    assert statuses == [0] * world_size, errors
    told = [line.removeprefix("megalith: ") for line in errors.splitlines()]
    facts = [json.loads(line) for line in told if line.startswith("{")]
    return facts, [line for line in told if not line.startswith("{")]


@on_cpu
def test_alone_a_rank_needs_no_process_group() -> None:
    facts, notices = started(1, ParallelConfig(num_threads=2))
    assert facts == [
        {
            "device": "cpu",
            "dp": 1,
            "threads": 2,
            "denormals": 0,
            "interface": None,
            "backend": None,
        }
    ]
    assert notices == []


@on_cpu
def test_nccl_without_gpus_is_gloo_and_every_rank_notes_it_once() -> None:
    facts, notices = started(2, ParallelConfig(distributed_backend="nccl"))
    assert [fact["backend"] for fact in facts] == ["gloo", "gloo"]
    assert len(notices) == 2
    assert re.search("nccl needs GPUs, and there is none here: ranks talk by gloo", notices[0])


@on_cpu
def test_ranks_of_one_host_share_its_cores_and_need_no_network() -> None:
    facts, notices = started(2, ParallelConfig())
    assert [fact["threads"] for fact in facts] == [threads_per_rank(2, {})] * 2
    assert {fact["interface"] for fact in facts} <= {"lo", "lo0"}
    assert [fact["dp"] for fact in facts] == [2, 2]
    assert notices == []


@on_cpu
def test_data_parallelism_takes_what_other_axes_leave() -> None:
    facts, _ = started(2, ParallelConfig(tensor_model_parallel_size=2))
    assert [fact["dp"] for fact in facts] == [1, 1]


def test_more_ranks_than_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: gpu)
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)
    with pytest.raises(MegalithError, match=r"4 ranks .* shows 2 GPUs.*--nproc-per-node 2"):
        _device(Place(3, 4, 3, 4))


def test_silent_ranks_are_waited_for_as_long_as_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """What `distributed_timeout_minutes` says reaches the process group."""
    asked: dict[str, Any] = {}
    monkeypatch.setattr(launch.dist, "init_process_group", lambda _, **given: asked.update(given))
    launch._join(Place(1, 2, 1, 2), "gloo", 7, {})
    assert asked == {"timeout": timedelta(minutes=7), "rank": 1, "world_size": 2}

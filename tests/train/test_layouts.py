"""A whole run on several ranks is the run of one process, with all that a run has."""

from pathlib import Path
from typing import Any

import pytest

from tests.pool import WorkerPool
from tests.train.runs import corpus, train, train_alone

SETTINGS = {
    "plain": [],
    "evaluation": ["--eval-interval", "3", "--eval-iters", "2", "--split", "60,30,10"],
    "whole split": ["--eval-interval", "4", "--full-validation", "--split", "60,40,0"],
    "documents": ["--eod-mask-loss", "--reset-position-ids", "--reset-attention-mask"],
    "cyclic": ["--dataloader-type", "cyclic"],
    "recompute": ["--recompute-granularity", "full", "--recompute-num-layers", "2"],
    "mean of means": ["--loss-average", "microbatch"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return corpus(tmp_path_factory.mktemp("data"))


@pytest.mark.parametrize("name", SETTINGS)
def test_two_ranks_log_what_one_process_logs(
    name: str, data: str, pool2: WorkerPool, tmp_path: Path
) -> None:
    settings = ["--data-path", data, "--params-dtype", "float64", *SETTINGS[name]]
    alone = train_alone(*settings, "--log-jsonl", str(tmp_path / "1.jsonl"))
    two, _ = pool2.run(train, [*settings, "--log-jsonl", str(tmp_path / "2.jsonl")])
    assert len(alone) == len(two) >= 8
    for here, there in zip(two, alone, strict=True):
        _same(here, there)


def _same(here: dict[str, Any], there: dict[str, Any]) -> None:
    for field in ("kind", "iteration", "consumed_samples"):
        assert here[field] == there[field]
    for field in {"lm loss", "grad_norm"} & here.keys():
        assert here[field] == pytest.approx(there[field], rel=1e-9)

"""The loop: when it evaluates, saves and stops, and what it does with bad steps."""

import math
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from megalith.comm.launch import Started
from megalith.comm.mesh import Mesh, ParallelLayout
from megalith.config.flags import load_run
from megalith.config.schema import CheckpointConfig
from megalith.errors import MegalithError
from megalith.train import loop
from megalith.train.loop import train_on
from megalith.train.persist import saved_run
from megalith.train.step import TrainStep
from tests.pool import WorkerPool
from tests.train.runs import SMALL, records, train, train_alone

# Long samples, of which the made-up corpus has few enough to be put in order in no time.
MOCK = "--mock-data --seq-length 128 --max-position-embeddings 128".split()


ALONE = Mesh(ParallelLayout(), 0, torch.device("cpu"), {})


def _log(tmp_path: Path) -> list[str]:
    return ["--log-jsonl", str(tmp_path / "log.jsonl")]


def _iterations(records: list[dict[str, Any]], kind: str) -> list[int]:
    return [record["iteration"] for record in records if record["kind"] == kind]


def test_evaluations_come_at_intervals_and_at_the_end(tmp_path: Path) -> None:
    settings = [*MOCK, *_log(tmp_path), "--eval-interval", "3", "--eval-iters", "1"]
    seen = train_alone(*settings)
    assert _iterations(seen, "evaluation") == [3, 6, 8, 8]
    late = train_alone(*settings, "--start-eval-at-iter", "4")
    assert _iterations(late[len(seen) :], "evaluation") == [6, 8, 8]


def test_skip_train_only_evaluates(tmp_path: Path) -> None:
    seen = train_alone(*MOCK, *_log(tmp_path), "--skip-train", "--eval-iters", "1")
    assert _iterations(seen, "step") == []
    assert _iterations(seen, "evaluation") == [0, 0]


def test_training_by_samples_ends_when_no_batch_is_left(tmp_path: Path) -> None:
    in_samples = {"--train-iters": "--train-samples", "--lr-warmup-iters": "--lr-warmup-samples"}
    words = [in_samples.get(word, word) for word in SMALL]
    words[words.index("--train-samples") + 1] = "22"
    config = load_run([*words, *MOCK, *_log(tmp_path)], "gpt", 1).config
    train_on(ALONE, config)
    assert len(records(tmp_path / "log.jsonl")) == 5


def test_exit_interval_saves_and_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_alone(*MOCK, "--exit-interval", "3", "--save", str(tmp_path))
    assert "exiting program at iteration 3" in capsys.readouterr().out
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text().strip() == "3"


def test_exit_duration_saves_and_stops(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_alone(*MOCK, "--exit-duration-in-mins", "0.00001", "--save", str(tmp_path))
    assert "exiting program after 0.0 minutes" in capsys.readouterr().out
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text().strip() == "1"


def test_save_interval_and_last_iteration_are_saved(tmp_path: Path) -> None:
    train_alone(*MOCK, "--save", str(tmp_path), "--save-interval", "3")
    saved = sorted(path.name for path in tmp_path.glob("iter_*"))
    assert saved == ["iter_0000003", "iter_0000006", "iter_0000008"]


def test_retain_interval_keeps_its_multiples_and_the_newest(tmp_path: Path) -> None:
    settings = ["--save", str(tmp_path), "--save-interval", "2", "--save-retain-interval", "4"]
    train_alone(*MOCK, *settings, "--exit-interval", "6")
    assert sorted(path.name for path in tmp_path.glob("iter_*")) == ["iter_0000004", "iter_0000006"]


def test_settings_of_a_run_are_saved_and_start_it_again(tmp_path: Path) -> None:
    train_alone(*MOCK, "--save", str(tmp_path), "--exit-interval", "1")
    again = load_run(["--config", str(tmp_path / "config.yaml")], "gpt", 1).config
    assert again == saved_run(CheckpointConfig(load=str(tmp_path)))


def test_phases_are_timed_when_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    train_alone(*MOCK, "--timing-log-level", "2", "--exit-interval", "1")
    out = capsys.readouterr().out
    for phase in ("batch-generator", "forward-backward", "forward-compute", "backward-compute",
                  "all-grads-sync", "optimizer"):  # fmt: skip
        assert f"    {phase} ...." in out


def test_deterministic_mode_is_handed_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(loop, "start", lambda parallel: Started(ALONE, []))
    monkeypatch.setattr(
        loop, "train_on", lambda *_: seen.append(torch.are_deterministic_algorithms_enabled())
    )
    try:
        for words in ([], ["--deterministic-mode"]):
            loop.pretrain(load_run([*SMALL, *MOCK, *words], "gpt", 1).config, [])
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen == [False, True]


def test_signals_keep_their_meaning_when_asked_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    came: list[int] = []
    former = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    plain = TrainStep.__call__

    def step(self: TrainStep, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGUSR1)
        return plain(self, *arguments)

    monkeypatch.setattr(TrainStep, "__call__", step)
    try:
        seen = train_alone(*MOCK, *_log(tmp_path), "--no-exit-signal-handler")
    finally:
        signal.signal(signal.SIGUSR1, former)
    assert len(came) == len(seen) == 8


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_signal_saves_and_stops_at_the_step_boundary(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = TrainStep.__call__
    steps = []

    def step(self: TrainStep, *arguments: Any) -> Any:
        steps.append(0)
        if len(steps) == 2:
            os.kill(os.getpid(), getattr(signal, name))
        return plain(self, *arguments)

    monkeypatch.setattr(TrainStep, "__call__", step)
    train_alone(*MOCK, "--save", str(tmp_path))
    assert f"exiting program after receiving {name}." in capsys.readouterr().out
    assert (tmp_path / "latest_checkpointed_iteration.txt").read_text().strip() == "2"


def test_skipped_iterations_consume_their_data(tmp_path: Path) -> None:
    seen = train_alone(*MOCK, *_log(tmp_path), "--iterations-to-skip", "2", "3")
    assert [record["skipped"] for record in seen] == [False] * 2 + [True] * 2 + [False] * 4
    assert [record["consumed_samples"] for record in seen] == [4 * i for i in range(1, 9)]
    assert seen[-1]["skipped_samples"] == 8


def _train_with_nan(
    mesh: Mesh, arguments: list[str], rank: int, again: bool
) -> list[dict[str, Any]]:
    """Trains with an MLP that gives NaN on one rank in the third step; `again` when asked anew."""
    plain = TrainStep.gradients
    steps = []

    def gradients(self: TrainStep, microbatches: Any) -> Any:
        steps.append(0)
        if len(steps) != 3 or mesh.rank != rank:
            return plain(self, microbatches)
        handle = self.model.layers[1].mlp.register_forward_hook(lambda *call: call[-1] * math.nan)
        try:
            return plain(self, microbatches)
        finally:
            if not again:
                handle.remove()

    TrainStep.gradients = gradients  # type: ignore[method-assign]
    try:
        return train(mesh, arguments)
    finally:
        TrainStep.gradients = plain  # type: ignore[method-assign]


def test_nan_stops_all_ranks_and_names_iteration_rank_and_place(pool2: WorkerPool) -> None:
    with pytest.raises(MegalithError) as caught:
        pool2.run(_train_with_nan, MOCK, 1, True)
    message = str(caught.value)
    assert "in iteration 3" in message
    assert "rank 1: the output of layers.1.mlp in microbatch 0" in message
    assert "--iterations-to-skip 2" in message


def test_nan_is_not_looked_for_when_that_is_switched_off(pool2: WorkerPool, tmp_path: Path) -> None:
    settings = [*MOCK, *_log(tmp_path), "--no-check-for-nan-in-loss-and-grad"]
    seen, _ = pool2.run(_train_with_nan, settings, 0, False)
    assert len(seen) == 8 and seen[-1]["lm loss"] is None and not seen[-1]["skipped"]


def test_nan_policy_skip_leaves_the_step_out_and_counts_it(
    pool2: WorkerPool, tmp_path: Path
) -> None:
    settings = [*MOCK, *_log(tmp_path), "--nan-policy", "skip"]
    seen, _ = pool2.run(_train_with_nan, settings, 0, False)
    assert [record["nan"] for record in seen] == [False] * 2 + [True] + [False] * 5
    assert seen[2]["learning_rate"] == seen[1]["learning_rate"]


def test_run_that_keeps_or_does_nothing_is_noted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_alone(*MOCK, "--exit-interval", "1")
    assert "without --save the trained model is not kept" in capsys.readouterr().out
    own = ["--save", str(tmp_path), "--load", str(tmp_path)]
    for _ in range(2):
        train_alone(*MOCK, *own)
    assert (
        "nothing is left to train: the checkpoint is of iteration 8 of 8" in capsys.readouterr().out
    )


def test_new_run_does_not_overwrite_another(tmp_path: Path) -> None:
    train_alone(*MOCK, "--save", str(tmp_path), "--exit-interval", "1")
    with pytest.raises(MegalithError, match="holds checkpoints already, and this run would start"):
        train_alone(*MOCK, "--save", str(tmp_path))

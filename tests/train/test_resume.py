"""A resumed run is the uninterrupted one, bit for bit; and what it refuses to go on with."""

from pathlib import Path
from typing import Any

import pytest

from megalith.comm.mesh import Mesh
from megalith.errors import MegalithError
from tests.pool import WorkerPool
from tests.train.runs import corpus, train, train_alone

PRECISIONS = {
    "float32": [],
    "bfloat16": ["--bf16"],
    "float16": ["--fp16", "--initial-loss-scale", "65536", "--loss-scale-window", "3"],
    "sgd": ["--optimizer", "sgd"],
    "recompute": ["--recompute-granularity", "full"],
    "ramp-up": ["--rampup-batch-size", "2", "2", "8"],
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return corpus(tmp_path_factory.mktemp("data"))


def _losses(records: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What must not differ: losses and norms of steps and evaluations, not times."""
    names = ("kind", "iteration", "lm loss", "grad_norm", "learning_rate", "loss_scale")
    return [tuple(str(record.get(name)) for name in names) for record in records]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_resumed_run_equals_the_uninterrupted_one(
    precision: str, data: str, tmp_path: Path
) -> None:
    settings = [*PRECISIONS[precision], "--data-path", data, "--split", "80,20,0"]
    settings += ["--eval-interval", "2", "--eval-iters", "1"]
    whole = train_alone(*settings, "--log-jsonl", str(tmp_path / "whole.jsonl"))
    settings += ["--save", str(tmp_path / "saved"), "--load", str(tmp_path / "saved")]
    settings += ["--log-jsonl", str(tmp_path / "pieces.jsonl")]
    for stop in ("3", "5"):
        train_alone(*settings, "--exit-interval", stop)
    pieces = train_alone(*settings)
    assert len(whole) >= 12
    assert _losses(pieces) == _losses(whole)


def _train_in_pieces(mesh: Mesh, settings: list[str], stops: list[str]) -> list[dict[str, Any]]:
    for stop in stops:
        train(mesh, [*settings, "--exit-interval", stop])
    return train(mesh, settings)


def test_two_ranks_resume_and_equal_one_process(
    pool2: WorkerPool, data: str, tmp_path: Path
) -> None:
    settings = ["--data-path", data, "--params-dtype", "float64"]
    alone = train_alone(*settings, "--log-jsonl", str(tmp_path / "alone.jsonl"))
    settings += ["--save", str(tmp_path / "saved"), "--load", str(tmp_path / "saved")]
    settings += ["--log-jsonl", str(tmp_path / "two.jsonl")]
    two, _ = pool2.run(_train_in_pieces, settings, ["3", "6"])
    assert [r["iteration"] for r in two] == [r["iteration"] for r in alone]
    for here, there in zip(two, alone, strict=True):
        assert here["lm loss"] == pytest.approx(there["lm loss"], rel=1e-9)
        assert here["grad_norm"] == pytest.approx(there["grad_norm"], rel=1e-9)


def test_weights_alone_survive_the_first_step(data: str, tmp_path: Path) -> None:
    """Main weights are refreshed from the loaded ones, else the step would undo the loading."""
    save, log = str(tmp_path / "saved"), str(tmp_path / "log.jsonl")
    settings = ["--data-path", data, "--bf16", "--log-jsonl", log, "--hidden-dropout", "0"]
    settings += ["--attention-dropout", "0"]
    before = train_alone(*settings, "--save", save, "--train-iters", "20")[-1]["lm loss"]
    for option in ("--finetune", "--no-load-optim"):
        tuned = [*settings, "--load", save, option, "--lr", "1e-6", "--lr-warmup-iters", "0"]
        after = train_alone(*tuned, "--train-iters", "22")[-2:]
        assert all(abs(record["lm loss"] - before) < 0.4 for record in after), option


def test_wrong_load_is_an_error_and_own_folder_a_fresh_start(
    data: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = ["--data-path", data, "--train-iters", "1", "--lr-warmup-iters", "0"]
    with pytest.raises(MegalithError, match="elsewhere"):
        train_alone(*settings, "--load", str(tmp_path / "elsewhere"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(MegalithError, match="empty"):
        train_alone(*settings, "--load", str(tmp_path / "empty"))
    own = ["--save", str(tmp_path / "own"), "--load", str(tmp_path / "own")]
    with pytest.raises(MegalithError, match="own"):
        train_alone(*settings, *own, "--exit-on-missing-checkpoint")
    train_alone(*settings, *own)
    assert "has no checkpoint yet: training starts anew" in capsys.readouterr().out
    with pytest.raises(MegalithError, match="7"):
        train_alone(*settings, *own, "--ckpt-step", "7")


def test_folder_that_takes_no_checkpoint_is_told_before_training(data: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = ["--data-path", data, "--log-jsonl", str(tmp_path / "log.jsonl")]
    with pytest.raises(MegalithError, match=r"--save .*file: rank 0 cannot write the checkpoint"):
        train_alone(*settings, "--save", str(tmp_path / "file"))
    assert (tmp_path / "log.jsonl").read_text() == ""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["--seed", "5"], "--seed was 1234 and is 5"),
        (["--lr", "0.5"], "--lr: 0.01 in the checkpoint, 0.5 now"),
        (["--split", "50,50,0"], "split of the data was"),
        (["--hidden-size", "64"], "64"),
        (["--num-layers", "3"], "layers.2"),
    ],
)
def test_another_run_is_not_continued(
    changes: list[str], message: str, data: str, tmp_path: Path
) -> None:
    settings = ["--data-path", data, "--save", str(tmp_path), "--load", str(tmp_path)]
    train_alone(*settings, "--exit-interval", "2")
    with pytest.raises(MegalithError, match=message):
        train_alone(*settings, *changes)


def test_new_seed_and_schedule_are_taken_when_asked_for(data: str, tmp_path: Path) -> None:
    settings = ["--data-path", data, "--save", str(tmp_path), "--load", str(tmp_path)]
    settings += ["--log-jsonl", str(tmp_path / "log.jsonl"), "--lr-decay-style", "constant"]
    train_alone(*settings, "--exit-interval", "2")
    changed = [*settings, "--lr", "0.5"]
    kept = train_alone(*changed, "--use-checkpoint-opt-param-scheduler", "--exit-interval", "4")
    assert kept[-1]["learning_rate"] == 0.01
    taken = train_alone(*changed, "--override-opt-param-scheduler", "--exit-interval", "6")
    assert taken[-1]["learning_rate"] == 0.5
    train_alone(*changed, "--seed", "99", "--no-load-rng")


def test_seed_that_was_not_saved_is_not_missed(data: str, tmp_path: Path) -> None:
    settings = ["--data-path", data, "--save", str(tmp_path), "--load", str(tmp_path)]
    train_alone(*settings, "--exit-interval", "2", "--no-save-rng")
    train_alone(*settings, "--seed", "99")


def test_optimizer_left_out_of_a_checkpoint_is_missed(data: str, tmp_path: Path) -> None:
    settings = ["--data-path", data, "--save", str(tmp_path), "--load", str(tmp_path)]
    train_alone(*settings, "--exit-interval", "2", "--no-save-optim")
    with pytest.raises(MegalithError, match="--no-load-optim"):
        train_alone(*settings)
    train_alone(*settings, "--no-load-optim")

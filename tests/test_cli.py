"""The command itself: finding subcommands, help without weight, mistakes in one line."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from megalith import __version__, cli
from megalith.cli import COMMANDS, main
from tests.train.runs import SMALL, corpus, train_alone

ROOT = Path(__file__).parents[1]
RUN = "--preset tiny-gpt2 --mock-data --train-iters 4 --lr 0.1 --micro-batch-size 1".split()


def test_overview_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"megalith {name}" in text for name in COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"megalith {__version__}\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["pretain", "gpt"],
            "there is no command `megalith pretain gpt`: the nearest is `megalith ",
        ),
        (["pretrain", "gpt", "--num-layer", "3"], "the nearest known one is --num-layers"),
        (["pretrain", "gpt", "--zzz"], "unknown flag --zzz: see --help for all flags"),
        (
            ["pretrain", "gpt", "--nproc_per_node=2"],
            "--nproc-per-node is not a setting of the run but of what launches it",
        ),
        (["launch"], "megalith launch: say what to start"),
        (["config", "docs", "x"], "megalith config docs takes no settings, but got x"),
        (["data", "prepare"], "--input is missing"),
        (["generate"], "--load is missing"),
    ],
)
def test_mistakes_are_told_once_with_status_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and message in captured.err
    assert captured.err.startswith("megalith: error: ") and "Traceback" not in captured.err


def test_only_one_rank_tells_a_mistake_in_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cli, "SECONDS_FOR_RANK_0", 0.0)
    assert main(["pretrain", "gpt", "--num-layer", "3"]) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [name for name, c in COMMANDS.items() if c.config_class])
def test_help_has_groups_and_imports_no_torch(command: str) -> None:
    code = "import sys; from megalith.cli import main; main(sys.argv[1:])\n"
    code += "print('torch' in sys.modules or 'numpy' in sys.modules)"
    words = [sys.executable, "-c", code, *command.split(), "--help"]
    text = subprocess.check_output(words, cwd=ROOT, text=True)
    assert text.endswith("False\n")
    assert ("General:" in text and "Tokenizer:" in text) or command == "generate"
    assert text.startswith(f"usage: megalith {command} [settings]")


def test_config_show_prints_what_reads_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "show", "--world-size", "4", *RUN]) == 0
    text = capsys.readouterr().out
    assert "global_batch_size: " in text and "# Training" in text
    (tmp_path / "run.yaml").write_text(text)
    assert (
        main(["config", "show", "--world-size", "4", "--config", str(tmp_path / "run.yaml")]) == 0
    )
    assert capsys.readouterr().out == text
    assert main(["config", "show", "--json", *RUN]) == 0
    assert json.loads(capsys.readouterr().out)["training"]["train_iters"] == 4
    assert main(["config", "show", "--world-size", "none", *RUN]) == 2


def test_settings_page_is_up_to_date(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "docs"]) == 0
    assert capsys.readouterr().out == (ROOT / "docs" / "settings.md").read_text()


def test_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m megalith pretrain gpt --help | head -1"
    result = subprocess.run(command, shell=True, cwd=ROOT, capture_output=True, text=True)
    assert result.stderr == ""


def test_model_of_a_checkpoint_is_taken_when_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_alone("--data-path", corpus(tmp_path), "--exit-interval", "1", "--save", str(tmp_path))
    words = [*SMALL, "--hidden-size", "64", "--mock-data", "--load", str(tmp_path)]
    assert main(["config", "show", *words, "--use-checkpoint-args"]) == 0
    captured = capsys.readouterr()
    assert "hidden_size: 32\n" in captured.out
    assert "--hidden-size 64 is overruled by --use-checkpoint-args" in captured.err
    fresh = ["--load", str(tmp_path / "new"), "--save", str(tmp_path / "new")]
    assert main(["config", "show", *words, *fresh, "--use-checkpoint-args"]) == 0
    assert "hidden_size: 64\n" in capsys.readouterr().out


def test_rank_whose_own_environment_is_wrong_tells_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    places = {"RANK": "5", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in places.items():
        monkeypatch.setenv(name, value)
    assert main(["pretrain", "gpt", *RUN]) == 2
    assert "RANK=5 and WORLD_SIZE=2" in capsys.readouterr().err


@pytest.mark.parametrize("command", [name for name, c in COMMANDS.items() if not c.config_class])
def test_commands_without_settings_tell_how_they_are_called(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"megalith {command} ")

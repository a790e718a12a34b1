"""`megalith generate` from what a training run saved."""

from pathlib import Path

import pytest
import torch

from megalith.cli import main
from megalith.serve.generate import Sampler, generate, load_model
from tests.train.runs import corpus, train_alone


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = str(tmp_path_factory.mktemp("saved"))
    train_alone("--data-path", corpus(Path(folder)), "--exit-interval", "2", "--save", folder)
    return folder


def _generate(saved: str, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["generate", "--load", saved, "--num-tokens", "8", *words]) == 0
    return capsys.readouterr().out


def test_prompts_are_continued(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = _generate(saved, capsys, "--prompt", "one", "two", "--greedy")
    first, second = text.split("\n" + "-" * 80 + "\n")
    assert first.startswith("one") and second.startswith("two")
    assert text == _generate(saved, capsys, "--prompt", "one", "two", "--greedy")


def test_samples_follow_the_seed(saved: str, capsys: pytest.CaptureFixture[str]) -> None:
    one = _generate(saved, capsys, "--prompt", "a", "--num-samples", "3")
    assert one.count("-" * 80) == 2 and len(set(one.split("\n" + "-" * 80 + "\n"))) == 3
    assert one == _generate(saved, capsys, "--prompt", "a", "--num-samples", "3")
    assert one != _generate(saved, capsys, "--prompt", "a", "--num-samples", "3", "--seed", "5")


def test_padding_of_the_vocabulary_is_never_chosen(tmp_path: Path) -> None:
    """Even where the padding rows would win by far."""
    train_alone("--data-path", corpus(tmp_path), "--exit-interval", "1", "--save", str(tmp_path))
    model, tokenizer, _ = load_model(str(tmp_path), None)
    wide = torch.cat((model.word_embedding.weight, torch.full((7, 32), 100.0)))
    model.word_embedding.weight.data = wide
    columns = generate(model, torch.tensor([[65]]), 12, Sampler(greedy=True), torch.Generator())
    assert all(int(column) < tokenizer.vocab_size for column in columns)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--temperature", "0"], "--temperature 0.0 must be above 0. For the likeliest"),
        (["--top-k", "-1"], "--top-k -1 must not be negative"),
        (["--top-p", "1.5"], "--top-p 1.5 must lie between 0 and 1"),
        (["--num-tokens", "0"], "--num-tokens 0 and --num-samples 1 must be at least 1"),
        (["--num-tokens", "500"], "make 501 tokens, but the model learned positions for 16"),
        (["--ckpt-step", "9"], "has no complete checkpoint iter_0000009"),
    ],
)
def test_mistakes_are_told(
    words: list[str], message: str, saved: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", "--load", saved, *words]) == 2
    assert message in capsys.readouterr().err

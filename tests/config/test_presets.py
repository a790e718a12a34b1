"""Presets are the models that their names promise."""

import pytest
import torch

from megalith.config.files import preset_names
from megalith.config.flags import load_run
from megalith.config.rules import resolve_vocabulary
from megalith.config.schema import ModelConfig
from megalith.models.gpt import GPT

TRAINING = "--mock-data --train-iters 9 --lr 0.1 --micro-batch-size 1 --global-batch-size 1".split()

PARAMETERS = {
    # name: (vocabulary, parameters as published)
    "gpt2-124m": (50257, 124_439_808),
    "gpt2-355m": (50257, 354_823_168),
    "gpt2-774m": (50257, 774_030_080),
    "gpt2-1.5b": (50257, 1_557_611_200),
    "gpt3-125m": (50257, 125e6),
    "gpt3-350m": (50257, 356e6),
    "gpt3-760m": (50257, 760e6),
    "gpt3-1.3b": (50257, 1.3e9),
    "gpt3-2.7b": (50257, 2.65e9),
    "gpt3-6.7b": (50257, 6.7e9),
    "gpt3-13b": (50257, 12.85e9),
    "gpt3-175b": (50257, 174.6e9),
    "megatron-1.3b": (50257, 1.3e9),
    "gpt-13b": (50257, 13e9),
    "llama3-8b": (128256, 8_030_261_248),
    "llama3-70b": (128256, 70_553_706_496),
}


def _model(preset: str, vocabulary: int) -> ModelConfig:
    words = ["--preset", preset, *TRAINING, "--no-pad-vocab-size"]
    return resolve_vocabulary(load_run(words, "gpt", 1).config, vocabulary).model


def _parameters(model: ModelConfig) -> int:
    with torch.device("meta"):
        gpt = GPT(model, torch.bfloat16, 1)
    return sum(parameter.numel() for parameter in gpt.parameters())


@pytest.mark.parametrize("preset", preset_names())
def test_preset_resolves(preset: str) -> None:
    assert _model(preset, 50257).num_layers > 0


@pytest.mark.parametrize("preset", PARAMETERS)
def test_parameters_are_those_published(preset: str) -> None:
    vocabulary, published = PARAMETERS[preset]
    count = _parameters(_model(preset, vocabulary))
    if isinstance(published, int):
        assert count == published
    else:
        assert count == pytest.approx(published, rel=0.03)


def test_all_presets_with_a_size_in_their_name_are_checked() -> None:
    assert set(preset_names()) - PARAMETERS.keys() == {"demo", "tiny-gpt2", "tiny-llama"}

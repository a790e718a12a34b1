"""Generation: the cache changes nothing, and samplers keep what they promise."""

from typing import Any

import pytest
import torch

from megalith.models.gpt import GPT
from megalith.serve.generate import Sampler, generate
from tests.models.models import build, layout_of, model_config
from tests.models.test_gpt import LLAMA

PROMPT = torch.tensor([[3, 14, 15, 9, 26], [5, 35, 8, 9, 7]])


def _greedy(model: GPT, steps: int) -> torch.Tensor:
    columns = generate(model, PROMPT, steps, Sampler(greedy=True), torch.Generator())
    return torch.stack(list(columns), 1)


@pytest.mark.parametrize(
    "settings",
    [{}, LLAMA, {"window_size": 3}, {"num_query_groups": 1}, {"hidden_dropout": 0.5}],
    ids=["gpt2", "llama", "window", "multi query", "dropout is off"],
)
def test_cached_generation_equals_computing_everything_anew(settings: dict[str, Any]) -> None:
    model = build(model_config(**settings)).eval()
    tokens = PROMPT
    for _ in range(8):
        logits = model(tokens.reshape(-1), layout_of(2, tokens.shape[1]))
        last = logits.unflatten(0, (2, -1))[:, -1]
        tokens = torch.cat((tokens, last.argmax(-1, keepdim=True)), 1)
    assert torch.equal(_greedy(model, 8), tokens[:, 5:])


def test_same_seed_gives_the_same_sample_and_another_seed_another() -> None:
    model = build(model_config()).eval()

    def sample(seed: int) -> list[int]:
        columns = generate(model, PROMPT, 10, Sampler(), torch.Generator().manual_seed(seed))
        return torch.stack(list(columns), 1).flatten().tolist()

    assert sample(1) == sample(1) != sample(2)


LOGITS = torch.tensor([[0.5, 0.25, 0.15, 0.1]]).log()


def test_top_k_keeps_the_likeliest() -> None:
    kept = Sampler(top_k=2).probabilities(LOGITS)
    torch.testing.assert_close(kept, torch.tensor([[2 / 3, 1 / 3, 0.0, 0.0]]))


@pytest.mark.parametrize(
    ("top_p", "kept"), [(0.4, 1), (0.6, 2), (0.76, 3), (0.95, 4), (0.0, 4), (1.0, 4)]
)
def test_top_p_keeps_the_least_number_that_reaches_it(top_p: float, kept: int) -> None:
    assert (Sampler(top_p=top_p).probabilities(LOGITS) > 0).sum() == kept


def test_temperature_sharpens_or_flattens() -> None:
    cold = Sampler(temperature=0.5).probabilities(LOGITS)
    squares = LOGITS.exp().square()
    torch.testing.assert_close(cold, squares / squares.sum())


def test_draws_follow_the_probabilities() -> None:
    drawn = Sampler().choose(LOGITS.expand(20000, 4), torch.Generator().manual_seed(1))
    shares = drawn.bincount(minlength=4) / 20000
    torch.testing.assert_close(shares, LOGITS.exp()[0], rtol=0, atol=0.02)

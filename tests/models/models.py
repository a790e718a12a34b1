"""Small models and batches for tests."""

from typing import Any

import torch

from megalith.config.schema import ModelConfig
from megalith.memory.recompute import RecomputePolicy
from megalith.models.gpt import GPT
from megalith.nn.init import initialise
from megalith.nn.layout import TokenLayout
from megalith.nn.loss import Targets

ONE_RANK = {"pp": 0, "dp": 0, "cp": 0, "tp": 0}


def model_config(**changes: Any) -> ModelConfig:
    """A two-layer GPT-2 of width 32, with everything resolved."""
    settings: dict[str, Any] = {
        "num_layers": 2,
        "hidden_size": 32,
        "ffn_hidden_size": 64,
        "num_attention_heads": 4,
        "num_query_groups": 4,
        "kv_channels": 8,
        "seq_length": 16,
        "max_position_embeddings": 16,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "vocab_size": 61,
        "padded_vocab_size": 64,
    }
    return ModelConfig(**settings | changes)


def build(
    config: ModelConfig,
    dtype: torch.dtype = torch.float64,
    seed: int = 7,
    recompute: RecomputePolicy | None = None,
) -> GPT:
    """An initialised model whose norms and biases are moved from their plain starting values."""
    model = GPT(config, dtype, seed, recompute)
    initialise(model, seed, ONE_RANK)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.dim() == 1:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.data.add_(0.1 * noise.to(dtype))
    return model


def layout_of(samples: int, length: int, first_sample: int = 0, **changes: Any) -> TokenLayout:
    """The layout of whole samples with plain positions."""
    numbers = torch.arange(first_sample, first_sample + samples)
    return TokenLayout(numbers, torch.arange(length).repeat(samples), length, **changes)


def random_batch(
    samples: int, length: int, vocabulary: int = 61, seed: int = 3
) -> tuple[torch.Tensor, Targets]:
    """Tokens [t] and targets of random ids, with about a tenth of the targets masked."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocabulary, (samples, length + 1), generator=generator)
    weights = (torch.rand(samples * length, generator=generator) > 0.1).double()
    return tokens[:, :-1].reshape(-1), Targets(tokens[:, 1:].reshape(-1), weights)

"""The hand-written peer is the same model as ours."""

import dataclasses

import torch

from benchmarks.job import Workload
from benchmarks.peers.minimal_gpt import Layer, MinimalGPT
from megalith.models.gpt import GPT
from megalith.nn.block import Block
from tests.models.models import build, layout_of, model_config, random_batch

WORK = Workload(32, 4, "fp32", layers=2, sequence=16, batch=3, vocabulary=64)


def test_same_parameters_and_same_loss_as_ours() -> None:
    config = model_config(vocab_size=64, ffn_hidden_size=128)
    ours, minimal = build(config), MinimalGPT(WORK).double()
    copy_model(ours, minimal)
    tokens, targets = random_batch(WORK.batch, WORK.sequence, vocabulary=64)
    whole = dataclasses.replace(targets, weights=torch.ones_like(targets.weights))
    layout = layout_of(WORK.batch, WORK.sequence)
    mean = ours.loss(tokens, whole, layout) / tokens.numel()
    shape = (WORK.batch, WORK.sequence)
    other = minimal(tokens.reshape(shape), targets.labels.reshape(shape))
    torch.testing.assert_close(mean, other, rtol=1e-12, atol=0.0)
    assert count(ours) == count(minimal)


def copy_model(ours: GPT, minimal: MinimalGPT) -> None:
    assert ours.position_embedding is not None
    with torch.no_grad():
        minimal.tokens.weight.copy_(ours.word_embedding.weight)
        minimal.places.weight.copy_(ours.position_embedding.weight)
        minimal.norm.load_state_dict(ours.final_norm.state_dict())
        for block, layer in zip(ours.layers, minimal.layers, strict=True):
            assert isinstance(block, Block) and isinstance(layer, Layer)
            copy_layer(block, layer)


def copy_layer(block: Block, layer: Layer) -> None:
    layer.attention_norm.load_state_dict(block.attention_norm.state_dict())
    layer.qkv.load_state_dict(block.attention.qkv.state_dict())
    layer.mix.load_state_dict(block.attention.output.state_dict())
    layer.mlp_norm.load_state_dict(block.mlp_norm.state_dict())
    layer.up.load_state_dict(block.mlp.up.state_dict())
    layer.down.load_state_dict(block.mlp.down.state_dict())


def count(model: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())

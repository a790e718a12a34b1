"""GPT-2 in a page of PyTorch, as a good user writes it for himself."""

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.clock import Clock
from benchmarks.job import Job, Workload
from benchmarks.peers.loop import train_plainly


def train(job: Job, clock: Clock) -> None:
    """Runs the job's steps."""
    torch.manual_seed(1)
    train_plainly(job, clock, MinimalGPT(job.workload), call)


def call(model: nn.Module, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean loss."""
    loss: torch.Tensor = model(tokens, labels)
    return loss


class Layer(nn.Module):
    """Attention and MLP, pre-norm; x [b, s, h] → [b, s, h]."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(hidden)
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.mlp_norm = nn.LayerNorm(hidden)
        self.up = nn.Linear(hidden, 4 * hidden)
        self.down = nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x))
        inner = F.gelu(self.up(self.mlp_norm(x)), approximate="tanh")
        fed: torch.Tensor = self.down(inner)
        return x + fed

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        heads = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind(0)  # [b, heads, s, d] each
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: torch.Tensor = self.mix(mixed.transpose(1, 2).flatten(-2))
        return result


class MinimalGPT(nn.Module):
    """tokens and labels [b, s] → their mean cross-entropy."""

    def __init__(self, work: Workload) -> None:
        super().__init__()
        self.tokens = nn.Embedding(work.vocabulary, work.hidden)
        self.places = nn.Embedding(work.sequence, work.hidden)
        self.layers = nn.ModuleList(Layer(work.hidden, work.heads) for _ in range(work.layers))
        self.norm = nn.LayerNorm(work.hidden)
        self.head = nn.Linear(work.hidden, work.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(initialise)
        for layer in self.layers:
            assert isinstance(layer, Layer)
            for linear in (layer.mix, layer.down):
                nn.init.normal_(linear.weight, std=0.02 / (2 * work.layers) ** 0.5)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def initialise(module: nn.Module) -> None:
    """GPT-2's initial values."""
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)

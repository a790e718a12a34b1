"""GPT: a stack of causal Transformer layers that predicts the next token.

Radford et al. 2018 and 2019, Brown et al. 2020; with rotary positions, RMSNorm, gated
activations and grouped queries it is Llama (Touvron et al. 2023).
"""

from collections.abc import Sequence

import torch
from torch import nn

from megalith.config.schema import ModelConfig
from megalith.memory.recompute import RecomputePolicy
from megalith.nn.attention import KeyValueCache
from megalith.nn.block import Block
from megalith.nn.embedding import Embedding
from megalith.nn.initial import embedding_initial
from megalith.nn.layout import TokenLayout
from megalith.nn.loss import OutputLayer, Targets
from megalith.nn.norm import Norm
from megalith.nn.rng import DropoutPlace, dropout, row_keys
from megalith.nn.rope import rotary_phases


class GPT(nn.Module):
    """tokens [t] → the sum of the tokens' losses, or logits [t, vocabulary].

    `seed` keys dropout. Values are undefined until `nn.init.initialise` or a checkpoint fills them.
    """

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        seed: int,
        recompute: RecomputePolicy | None = None,
    ) -> None:
        super().__init__()
        assert config.vocab_size is not None and config.padded_vocab_size is not None
        self.config = config
        self.recompute = recompute or RecomputePolicy()
        width, initial = config.hidden_size, embedding_initial(config)
        self.seed: torch.Tensor
        self.register_buffer("seed", torch.tensor(seed, dtype=torch.int64), persistent=False)
        self.word_embedding = Embedding(
            config.vocab_size, width, initial, dtype, config.padded_vocab_size, role="vocabulary"
        )
        self.position_embedding: Embedding | None = None
        if config.position_embedding_type == "learned_absolute":
            positions = config.max_position_embeddings
            self.position_embedding = Embedding(positions, width, initial, dtype)
        self.layers = nn.ModuleList(
            Block(config, layer, dtype) for layer in range(1, config.num_layers + 1)
        )
        self.final_norm = Norm(width, config, dtype)
        tied = None if config.untie_embeddings_and_output_weights else self.word_embedding.weight
        self.output = OutputLayer(
            config.vocab_size, config.padded_vocab_size, width, initial, dtype, tied
        )

    def loss(self, tokens: torch.Tensor, targets: Targets, layout: TokenLayout) -> torch.Tensor:
        """The weighted sum of the tokens' cross-entropies."""
        return self.output.loss(self.hidden(tokens, layout), targets)

    def forward(
        self,
        tokens: torch.Tensor,
        layout: TokenLayout,
        caches: Sequence[KeyValueCache] | None = None,
    ) -> torch.Tensor:
        """Logits [t, vocabulary]."""
        logits: torch.Tensor = self.output(self.hidden(tokens, layout, caches))
        return logits

    def next_logits(
        self, tokens: torch.Tensor, layout: TokenLayout, caches: Sequence[KeyValueCache]
    ) -> torch.Tensor:
        """Logits [b, vocabulary] after the last token of each sample."""
        states = self.hidden(tokens, layout, caches)
        last: torch.Tensor = self.output(states.unflatten(0, (layout.samples, -1))[:, -1])
        return last

    def hidden(
        self,
        tokens: torch.Tensor,
        layout: TokenLayout,
        caches: Sequence[KeyValueCache] | None = None,
    ) -> torch.Tensor:
        """The last layer's normalised states [t, h]."""
        x = self._embedded(tokens, layout)
        phases = rotary_phases(layout.positions, self.config, x.dtype)
        if caches is None:
            x = self.recompute.run(list(self.layers), x, layout, phases, self.seed)
        else:
            for layer, cache in zip(self.layers, caches, strict=True):
                x = layer(x, layout, phases, self.seed, cache)
        return self.final_norm(x)

    def _embedded(self, tokens: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
        x = self.word_embedding(tokens)
        if self.position_embedding is not None:
            x = x + self.position_embedding(layout.positions)
        if not self.training or self.config.hidden_dropout == 0.0:
            return x
        rows = row_keys(self.seed, 0, DropoutPlace.EMBEDDING, layout)
        return dropout(x, self.config.hidden_dropout, rows)

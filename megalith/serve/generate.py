"""Text from a trained model: greedy or sampled, with a cache of keys and values."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from megalith.checkpoint.load import find_checkpoint, load_tensors
from megalith.checkpoint.manifest import read_manifest
from megalith.comm.mesh import Mesh, ParallelLayout
from megalith.config.schema import GenerateConfig, ModelConfig, RunConfig, from_dict
from megalith.data.tokenizers import Tokenizer, build_tokenizer
from megalith.errors import MegalithError
from megalith.models.gpt import GPT
from megalith.nn.attention import KeyValueCache
from megalith.nn.layout import TokenLayout
from megalith.nn.shard import sharded_parameters


@dataclass(frozen=True)
class Sampler:
    """How the next token is chosen from its logits.

    The likeliest if `greedy`. Otherwise drawn from softmax(logits / temperature) over the `top_k`
    likeliest tokens (0: all), of which only the likeliest up to a total probability of `top_p`
    (0: all; Holtzman et al. 2020) are kept.
    """

    greedy: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 0.0

    def choose(self, logits: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        """Logits [b, vocabulary] → tokens [b]."""
        if self.greedy:
            return logits.argmax(-1)
        probabilities = self.probabilities(logits)
        return torch.multinomial(probabilities, 1, generator=generator).squeeze(-1)

    def probabilities(self, logits: torch.Tensor) -> torch.Tensor:
        """The distribution that tokens are drawn from, [b, vocabulary] in float32."""
        logits = logits.to(torch.float32) / self.temperature
        if 0 < self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k).values[:, -1:]
            logits = logits.masked_fill(logits < least, -torch.inf)
        probabilities = logits.softmax(-1)
        if 0.0 < self.top_p < 1.0:
            ordered, tokens = probabilities.sort(descending=True)
            before = ordered.cumsum(-1) - ordered
            ordered = ordered.masked_fill(before >= self.top_p, 0.0)
            probabilities = torch.zeros_like(probabilities).scatter(-1, tokens, ordered)
        return probabilities


@torch.no_grad()
def generate(
    model: GPT,
    prompt: torch.Tensor,
    steps: int,
    sampler: Sampler,
    generator: torch.Generator,
) -> Iterator[torch.Tensor]:
    """Continues the prompts [b, p], p ≥ 1, by `steps` tokens; yields each new column [b]."""
    samples, length = prompt.shape
    caches = empty_caches(model, samples, length + steps)
    numbers = torch.zeros(samples, dtype=torch.int64, device=prompt.device)
    start, tokens = 0, prompt
    for _ in range(steps):
        end = start + tokens.shape[1]
        positions = torch.arange(start, end, device=prompt.device).repeat(samples)
        layout = TokenLayout(numbers, positions, end - start, start=start)
        logits = model.next_logits(tokens.reshape(-1), layout, caches)
        chosen = sampler.choose(logits, generator)
        yield chosen
        start, tokens = end, chosen[:, None]


def empty_caches(model: GPT, samples: int, capacity: int) -> list[KeyValueCache]:
    """Room for the keys and values of `capacity` tokens in every layer."""
    config = model.config
    assert config.num_query_groups is not None and config.kv_channels is not None
    shape = (samples, config.num_query_groups, capacity, config.kv_channels)
    weight = model.word_embedding.weight
    return [KeyValueCache(weight.new_empty(shape), weight.new_empty(shape)) for _ in model.layers]


def load_model(path: str, step: int | None) -> tuple[GPT, Tokenizer, RunConfig]:
    """The model of a checkpoint, ready to generate, with its tokenizer and the run's settings."""
    folder = find_checkpoint(path, step)
    config: RunConfig = from_dict(RunConfig, read_manifest(folder).config)
    dtype = getattr(torch, config.precision.params_dtype)
    model = GPT(config.model, dtype, config.training.seed).eval()
    mesh = Mesh.create(ParallelLayout(), torch.device("cpu"))
    load_tensors(folder, sharded_parameters(model), mesh)
    return model, build_tokenizer(config.tokenizer), config


def run(config: GenerateConfig) -> None:
    """Prints continuations of each prompt as they are generated (`megalith generate`)."""
    _check(config)
    model, tokenizer, _ = load_model(config.load, config.ckpt_step)
    sampler = Sampler(config.greedy, config.temperature, config.top_k, config.top_p)
    for index, prompt in enumerate(config.prompt or ("",)):
        tokens = tokenizer.encode(prompt) or [tokenizer.eod]
        _check_length(len(tokens) + config.num_tokens, model.config)
        for sample in range(config.num_samples):
            generator = torch.Generator().manual_seed(config.seed + sample)
            columns = generate(model, torch.tensor([tokens]), config.num_tokens, sampler, generator)
            _print_sample(prompt, columns, tokenizer, first=index == sample == 0)


def _print_sample(
    prompt: str, columns: Iterator[torch.Tensor], tokenizer: Tokenizer, first: bool
) -> None:
    if not first:
        print("-" * 80)
    tokens: list[int] = []
    for column in columns:
        token = int(column.item())
        if token == tokenizer.eod:
            break
        tokens.append(token)
    sys.stdout.write(prompt + tokenizer.decode(tokens) + "\n")
    sys.stdout.flush()


def _check(config: GenerateConfig) -> None:
    if not config.temperature > 0.0:
        raise MegalithError(
            f"--temperature {config.temperature} must be above 0. For the likeliest token each "
            "time, give --greedy."
        )
    if config.top_k < 0 or not 0.0 <= config.top_p <= 1.0:
        raise MegalithError(
            f"--top-k {config.top_k} must not be negative, and --top-p {config.top_p} must lie "
            "between 0 and 1; 0 switches either off."
        )
    if config.num_tokens < 1 or config.num_samples < 1:
        raise MegalithError(
            f"--num-tokens {config.num_tokens} and --num-samples {config.num_samples} must be at "
            "least 1."
        )


def _check_length(length: int, config: ModelConfig) -> None:
    if config.position_embedding_type == "learned_absolute":
        limit = config.max_position_embeddings
        if length > limit:
            raise MegalithError(
                f"Prompt and --num-tokens make {length} tokens, but the model learned positions "
                f"for {limit} (--max-position-embeddings). Shorten the prompt or --num-tokens."
            )

"""From a command line to a config: flags over YAML over preset over defaults."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from megalith.config import legacy
from megalith.config.effects import without_effect
from megalith.config.files import preset_path, read_yaml
from megalith.config.parser import Given, Layer, known_flags, parse_flags
from megalith.config.rules import problems_of, raise_all, resolve
from megalith.config.schema import (
    CheckpointConfig,
    GenerateConfig,
    PrepareConfig,
    RunConfig,
    groups_of,
    settings_of,
)
from megalith.config.translate import split, translate
from megalith.config.values import flag
from megalith.errors import MegalithError

FAMILIES = ("gpt",)

# A setting from a stronger source takes the place of these from a weaker one.
RIVALS = {
    "train_iters": "train_samples lr_decay_samples lr_warmup_samples lr_wsd_decay_samples",
    "train_samples": "train_iters lr_decay_iters lr_warmup_iters lr_wsd_decay_iters",
    "lr_warmup_iters": "lr_warmup_samples lr_warmup_fraction",
    "lr_warmup_samples": "lr_warmup_iters lr_warmup_fraction",
    "lr_warmup_fraction": "lr_warmup_iters lr_warmup_samples",
    "bf16": "fp16 params_dtype",
    "fp16": "bf16 params_dtype",
    "params_dtype": "bf16 fp16",
    "gradient_accumulation_steps": "global_batch_size",
    "mock_data": "data_path",
    "swiglu": "squared_relu quick_geglu",
    "squared_relu": "swiglu quick_geglu",
    "quick_geglu": "swiglu squared_relu",
}


@dataclass(frozen=True)
class ParsedRun:
    """A run and what to tell the user about how his settings were read."""

    config: RunConfig
    notices: list[str]


@dataclass
class Reading:
    """Settings from all sources; `malformed` problems leave doubt about what was meant."""

    config: Any = None
    given: dict[str, Given] = field(default_factory=dict)
    preset: str | None = None
    notices: list[str] = field(default_factory=list)
    malformed: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def add(self, layer: Layer) -> None:
        """Put a layer under those that are there already, without rivals of what they say."""
        said = {name for name, given in self.given.items() if given.value}
        lost = {rival for name in said for rival in RIVALS.get(name, "").split()}
        weaker = {name: given for name, given in layer.values.items() if name not in lost}
        self.given = weaker | self.given
        self.preset = self.preset or layer.general.get("preset")
        self.malformed += layer.problems


def parse_run(argv: Sequence[str], family: str = "gpt") -> ParsedRun:
    """Read a training run's settings, not yet resolved.

    Raises one MegalithError with all that cannot be read or is not done here.
    """
    reading = _read_run(argv, family)
    raise_all(reading.malformed + reading.refused)
    return ParsedRun(reading.config, reading.notices)


def load_run(
    argv: Sequence[str],
    family: str,
    world_size: int,
    saved_run: Callable[[CheckpointConfig], RunConfig | None] | None = None,
) -> ParsedRun:
    """Read and resolve a run; one MegalithError tells all problems of both steps.

    `saved_run` reads the run that `--use-checkpoint-args` takes the model from.
    """
    reading = _read_run(argv, family)
    raise_all(reading.malformed + reading.refused if reading.malformed else [])
    checkpoint = reading.config.checkpoint
    if checkpoint.use_checkpoint_args and saved_run is not None:
        saved = saved_run(checkpoint)
        if saved is not None:
            _take_model(reading, saved)
    raise_all(reading.refused + problems_of(reading.config, world_size))
    return ParsedRun(resolve(reading.config, world_size), reading.notices)


def parse_prepare(argv: Sequence[str]) -> tuple[PrepareConfig, list[str]]:
    """Settings of `megalith data prepare`, and notices."""
    reading = _read(argv, PrepareConfig)
    missing = [
        f"{flag(n)} is missing"
        for n in ("input", "output_prefix")
        if not getattr(reading.config, n)
    ]
    small = [
        f"{flag(name)} {getattr(reading.config, name)} must be above 0"
        for name in ("workers", "log_interval")
        if getattr(reading.config, name) < 1
    ]
    raise_all(reading.malformed + reading.refused + missing + small)
    return reading.config, reading.notices


def parse_generate(argv: Sequence[str]) -> tuple[GenerateConfig, list[str]]:
    """Settings of `megalith generate`, and notices."""
    reading = _read(argv, GenerateConfig)
    missing = [] if reading.config.load else ["--load is missing: the folder of a checkpoint"]
    raise_all(reading.malformed + reading.refused + missing)
    return reading.config, reading.notices


def _read_run(argv: Sequence[str], family: str) -> Reading:
    if family not in FAMILIES:
        raise MegalithError(
            f"megalith pretrain {family}: there is no such model family; there is gpt"
        )
    reading = _read(argv, RunConfig)
    reading.config = replace(reading.config, model_family=family, preset=reading.preset)
    reading.notices += without_effect(reading.config, reading.given)
    return reading


def _take_model(reading: Reading, saved: RunConfig) -> None:
    """The model of a checkpoint, and its tokenizer if none is given."""
    taken = settings_of(type(saved.model))
    tokenizer = reading.config.tokenizer
    if not settings_of(type(tokenizer)).keys() & reading.given.keys():
        tokenizer = saved.tokenizer
    reading.notices += [
        f"{flag(name)} {reading.given[name].value} is overruled by --use-checkpoint-args: the "
        f"checkpoint's model has {getattr(saved.model, name)}"
        for name in taken.keys() & reading.given.keys()
        if reading.given[name].value != getattr(saved.model, name)
    ]
    reading.config = replace(reading.config, model=saved.model, tokenizer=tokenizer)


def _read(argv: Sequence[str], config_class: type) -> Reading:
    """All layers of settings, the strongest first."""
    reading = Reading()
    layer = _read_words(argv, config_class, reading)
    reading.add(layer)
    if "config" in layer.general:
        _read_file(Path(layer.general["config"]), config_class, reading)
    if reading.preset and not reading.malformed:
        _read_file(preset_path(reading.preset), config_class, reading)
    reading.config = _build(config_class, reading.given)
    return reading


def _read_words(argv: Sequence[str], config_class: type, reading: Reading) -> Layer:
    translation = translate(argv, known_flags(config_class))
    reading.notices += translation.notices
    reading.refused += translation.refusals
    words = [word for _, words in split(translation.argv) for word in words]
    return parse_flags(words, config_class, legacy.names())


def _read_file(path: Path, config_class: type, reading: Reading) -> None:
    layer, words = read_yaml(path, config_class, lambda name: legacy.find(name) is not None)
    reading.add(layer)
    reading.add(_read_words(words, config_class, reading))


def _build(config_class: type, given: Mapping[str, Given]) -> Any:
    """The config with the given values, in its groups."""
    parts: dict[str, Any] = {}
    for attribute, group in groups_of(config_class):
        own = {name: given[name].value for name in settings_of(group) if name in given}
        parts |= own if not attribute else {attribute: group(**own)}
    return config_class(**parts)

"""Settings in YAML files: a user's own, and the presets that come with Megalith."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from megalith.config.parser import GENERAL, Layer, all_settings, known_flags
from megalith.config.schema import groups_of, settings_of
from megalith.config.values import flag, nearest
from megalith.errors import MegalithError

PRESETS = Path(__file__).parent / "presets"


def preset_names() -> list[str]:
    """Names for `--preset`."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def preset_path(name: str) -> Path:
    """The file of a preset; an unknown name raises MegalithError."""
    if name not in preset_names():
        similar = nearest(name, preset_names())
        hint = f"the nearest is {similar}; " if similar else ""
        raise MegalithError(f"--preset {name}: {hint}there are {', '.join(preset_names())}")
    return PRESETS / f"{name}.yaml"


def read_yaml(
    path: Path, config_class: type, foreign: Callable[[str], bool]
) -> tuple[Layer, list[str]]:
    """The settings of a YAML file, and its keys that are flags of another spelling, as words.

    Keys are those of the schema, without nesting. An unknown key is a problem that names file,
    line and the nearest setting, unless `foreign` knows its flag.
    """
    layer, words = Layer(), []
    settings = all_settings(config_class)
    for line, key, value in _entries(path):
        source = f"{path}:{line}: {key}"
        name = str(key).replace("-", "_")
        if name in GENERAL:
            layer.general[name] = value
        elif name in settings:
            layer.put(settings[name], value, source)
        elif flag(name) in known_flags(config_class) or foreign(flag(name)):
            words += _as_words(flag(name), value)
        else:
            similar = nearest(name, settings)
            hint = f"; the nearest is {similar}" if similar else ""
            layer.problems.append(f"{source} is no setting{hint}")
    return layer, words


def _as_words(name: str, value: Any) -> list[str]:
    if isinstance(value, bool) or value is None:
        return [name] if value else []
    return [name, *map(str, value)] if isinstance(value, list) else [name, str(value)]


def _entries(path: Path) -> Iterator[tuple[int, str, Any]]:
    """Line, key and value of a YAML mapping; each key may stand once."""
    loader = yaml.SafeLoader(_text(path))
    try:
        root = loader.get_single_node()
        if root is None:
            return
        if not isinstance(root, yaml.MappingNode):
            raise MegalithError(f"{path}: must hold lines of the form `setting: value`")
        seen = set()
        for key_node, value_node in root.value:
            line, key = key_node.start_mark.line + 1, loader.construct_object(key_node)
            if key in seen:
                raise MegalithError(f"{path}:{line}: {key} stands there twice: remove one")
            seen.add(key)
            yield line, key, loader.construct_object(value_node, deep=True)
    except yaml.YAMLError as error:
        raise MegalithError(f"{path} is no valid YAML: {error}") from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MegalithError(f"--config {path}: cannot read this file: {error}") from error


def flatten(config: Any) -> dict[str, Any]:
    """All settings of a config by name, with lists for tuples."""
    flat = {}
    for attribute, group in groups_of(type(config)):
        holder = getattr(config, attribute) if attribute else config
        for name in settings_of(group):
            value = getattr(holder, name)
            flat[name] = list(value) if isinstance(value, tuple) else value
    return flat


def to_yaml(config: Any) -> str:
    """A YAML file that reads back as exactly this config."""
    values, parts = flatten(config), []
    if getattr(config, "preset", None):
        parts.append(f"preset: {config.preset}\n")
    for _, group in groups_of(type(config)):
        chosen = {name: values[name] for name in settings_of(group)}
        parts.append(f"# {group.__doc__}\n" + yaml.safe_dump(chosen, sort_keys=False, width=100))
    return "\n".join(parts)

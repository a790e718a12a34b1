"""Values of settings, from the words of a command line or from YAML."""

import dataclasses
import difflib
import typing
from collections.abc import Iterable
from typing import Any

from megalith.config.schema import base_type

Setting = dataclasses.Field[Any]


def convert(setting: Setting, raw: Any) -> Any:
    """`raw` (words or a YAML value) as the setting's type; None is the default.

    Raises ValueError with the rest of a sentence that begins with the setting's name.
    """
    if raw is None:
        return setting.default
    if setting.name == "window_size":
        return _window(raw)
    kind = base_type(setting.type)
    if typing.get_origin(kind) is tuple:
        items = raw if isinstance(raw, list | tuple) else [raw]
        return tuple(_scalar(typing.get_args(kind)[0], item) for item in items)
    value = _scalar(kind, raw)
    choices = setting.metadata["choices"]
    if choices and value not in choices:
        raise ValueError(f"is {value!r}, but must be one of {', '.join(choices)}")
    return value


def _scalar(kind: type, raw: Any) -> Any:
    exact = type(raw) is kind or (kind is float and type(raw) is int)
    if not exact and not (isinstance(raw, str) and kind in (int, float)):
        hint = " (put it in quotes)" if kind is str else ""
        raise ValueError(f"is {raw!r}, but must be {_NAMES[kind]}{hint}")
    try:
        return kind(raw)
    except ValueError:
        raise ValueError(f"is {raw!r}, but must be {_NAMES[kind]}") from None


_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}


def _window(raw: Any) -> int | None:
    """Megatron-LM's `W,0` or `(W, 0)`, or W alone; -1 is no window."""
    words = str(raw).strip("()[] ").split(",")
    try:
        past, *future = [int(word) for word in words]
    except ValueError:
        past, future = 0, [1]
    if future not in ([], [0]) or past == 0:
        raise ValueError(f"is {raw!r}, but must be W or W,0: attention looks at W earlier tokens")
    return None if past == -1 else past


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is most like `name`, if one is like it at all.

    The dashes before flags do not count, since all flags have them.
    """
    bare = {word.lstrip("-"): word for word in known}
    matches = difflib.get_close_matches(name.lstrip("-"), bare, n=1, cutoff=0.7)
    return bare[matches[0]] if matches else None


def flag(name: str) -> str:
    """`--hidden-size` of `hidden_size`."""
    return "--" + name.replace("_", "-")

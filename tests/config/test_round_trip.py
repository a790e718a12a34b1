"""A resolved run written down reads back as exactly itself."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from megalith.config.files import to_yaml
from megalith.config.flags import load_run
from megalith.config.rules import resolve_vocabulary
from megalith.config.schema import RunConfig, base_type, from_dict, groups_of, settings_of, to_dict
from megalith.errors import MegalithError

BASE = "--preset tiny-gpt2 --mock-data --train-iters 4 --lr 0.1 --micro-batch-size 1".split()

VALUES = {
    int: st.integers(1, 10**12),
    float: st.floats(1e-30, 1e30),
    str: st.text(st.characters(codec="utf-8", exclude_categories=["Cs", "Cc"]), max_size=8),
    bool: st.booleans(),
    tuple[str, ...]: st.lists(st.text("ab/_.0", min_size=1), max_size=3).map(tuple),
    tuple[int, ...]: st.lists(st.integers(0, 99), min_size=1, max_size=3).map(tuple),
}


@st.composite
def runs(draw: st.DrawFn) -> RunConfig:
    """A run with some settings at random values, sensible or not."""
    config = RunConfig()
    for attribute, group in groups_of(RunConfig):
        changes: dict[str, Any] = {}
        for name, field in settings_of(group).items():
            if draw(st.integers(0, 4)) == 0:
                choices = field.metadata["choices"]
                kind = st.sampled_from(choices) if choices else VALUES[base_type(field.type)]
                changes[name] = draw(kind)
        config = replace(config, **{attribute: replace(getattr(config, attribute), **changes)})
    return config


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(runs())
def test_dictionary_reads_back(config: RunConfig) -> None:
    assert from_dict(RunConfig, to_dict(config)) == config


@pytest.mark.parametrize(
    "preset", ["tiny-gpt2", "tiny-llama", "demo", "llama3-8b", "megatron-1.3b"]
)
def test_yaml_of_a_resolved_run_reads_back(preset: str, tmp_path: Path) -> None:
    words = [*BASE, "--preset", preset, "--rampup-batch-size", "1", "1", "4", "--save", "a b: #"]
    words += ["--global-batch-size", "4"]
    config = resolve_vocabulary(load_run(words, "gpt", 1).config, 257)
    (tmp_path / "run.yaml").write_text(to_yaml(config))
    again = load_run(["--config", str(tmp_path / "run.yaml")], "gpt", 1)
    assert again.config == config
    assert resolve_vocabulary(again.config, 257) == config


def test_stored_settings_of_another_version_are_refused() -> None:
    values = to_dict(RunConfig())
    values["training"]["warp_drive"] = 1
    with pytest.raises(MegalithError, match="TrainingConfig has settings that this version does"):
        from_dict(RunConfig, values)

"""Setting up must not pull gigabytes of CUDA where there is no GPU."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("setup_env", ROOT / "tools/setup_environment.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CUDA_BUILD = ("sympy>=1.13", 'nvidia-cublas==13.1; platform_system == "Linux"')
CPU_BUILD = ("sympy>=1.13", "filelock")


def plan(*dependencies: str) -> dict[str, Any]:
    return {"install": [{"metadata": {"name": "torch", "requires_dist": [*dependencies]}}]}


class Pip:
    """Stands in for pip: answers what it would install, and notes what it is told to."""

    def __init__(self, setup: ModuleType, monkeypatch: pytest.MonkeyPatch, *needs: str) -> None:
        monkeypatch.setattr(setup.sys, "platform", "linux")
        self.told: list[tuple[str, ...]] = []
        monkeypatch.setattr(setup, "plan_of", lambda python, requirement: plan(*needs))
        monkeypatch.setattr(setup, "pip", lambda python, *words: self.told.append(words))


def test_cuda_is_seen_in_what_pip_would_install(setup: ModuleType) -> None:
    assert setup.brings_cuda(plan(*CUDA_BUILD))
    assert setup.brings_cuda(plan("cuda-toolkit[all]==13.0"))
    assert not setup.brings_cuda(plan(*CPU_BUILD))
    assert not setup.brings_cuda({"install": []})


def test_without_a_gpu_a_cuda_build_is_replaced_by_the_cpu_build(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = Pip(setup, monkeypatch, *CUDA_BUILD)
    monkeypatch.setattr(setup, "has_nvidia_gpu", lambda: False)
    setup.install_torch(Path("python"))
    (words,) = pip.told
    assert setup.CPU_BUILDS in words and words[-1].startswith("torch>=")


def test_without_a_gpu_a_cpu_build_that_pip_finds_is_left_to_pip(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = Pip(setup, monkeypatch, *CPU_BUILD)
    monkeypatch.setattr(setup, "has_nvidia_gpu", lambda: False)
    setup.install_torch(Path("python"))
    assert pip.told == []


def test_with_a_gpu_pip_takes_what_it_finds(
    setup: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = Pip(setup, monkeypatch, *CUDA_BUILD)
    monkeypatch.setattr(setup, "has_nvidia_gpu", lambda: True)
    setup.install_torch(Path("python"))
    assert pip.told == []


def test_a_gpu_is_what_the_driver_tool_lists(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not setup.has_nvidia_gpu()
    tool = tmp_path / "nvidia-smi"
    tool.write_text("#!/bin/sh\nexit 0\n")
    tool.chmod(0o755)
    assert setup.has_nvidia_gpu()
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert not setup.has_nvidia_gpu()


def find_python(*candidates: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", str(ROOT / "tools/find_python.sh"), *candidates]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))


def test_a_python_of_3_11_or_newer_is_found() -> None:
    found = find_python("no-such-python", sys.executable)
    assert (found.returncode, found.stdout) == (0, sys.executable + "\n")


def test_without_a_fitting_python_the_message_says_how_to_name_one(tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    found = find_python(str(old))
    assert found.returncode == 1 and found.stdout == ""
    assert "needs Python 3.11 or newer" in found.stderr and "make PYTHON=" in found.stderr

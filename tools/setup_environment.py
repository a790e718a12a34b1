"""Make a virtual environment with Megalith in it: `setup_environment.py FOLDER [EXTRA ...]`.

`pip install torch` brings several gigabytes of CUDA libraries on most Linux machines. This takes
them only where there is an NVIDIA GPU; elsewhere, PyTorch's CPU build. A torch that is in the
environment already and fits pyproject.toml is kept.
"""

import json
import subprocess
import sys
import tomllib
import venv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"


def main(folder: str, extras: Sequence[str]) -> int:
    """Make or complete the environment; returns the exit status."""
    try:
        python = create(Path(folder))
        pip(python, "install", "--upgrade", "pip")
        install_torch(python)
        say("Installing Megalith and what it needs (a minute or two)")
        chosen = f"[{','.join(extras)}]" if extras else ""
        pip(python, "install", "--editable", f"{ROOT}{chosen}")
        compile_bytecode(Path(folder), python)
    except subprocess.CalledProcessError as error:
        # pip has said what is wrong.
        say(f"Setting up {folder} failed at: {' '.join(map(str, error.cmd))}")
        return 1
    return 0


def create(folder: Path) -> Path:
    """The Python of a virtual environment, which is made anew unless it works already."""
    python = folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    works = python.exists() and succeeds([str(python), "-m", "pip", "--version"])
    if not works:
        say(f"Making {folder} with Python {sys.version.split()[0]}")
        venv.create(folder, clear=True, with_pip=True)
    return python


def install_torch(python: Path) -> None:
    """PyTorch's CPU build, where there is no GPU and pip by itself would take a CUDA build.

    Anything else is left to the installation of Megalith. Only for Linux do registries offer CUDA
    builds under the plain name.
    """
    if sys.platform != "linux" or has_nvidia_gpu():
        return
    requirement = torch_requirement((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    if brings_cuda(plan_of(python, requirement)):
        say(f"No NVIDIA GPU here: taking the CPU build of {requirement} from {CPU_BUILDS}")
        pip(python, "install", "--no-deps", "--index-url", CPU_BUILDS, requirement)


def torch_requirement(pyproject: str) -> str:
    """`torch` with its range, out of the text of pyproject.toml."""
    dependencies: list[str] = tomllib.loads(pyproject)["project"]["dependencies"]
    return next(item for item in dependencies if item.startswith("torch"))


def has_nvidia_gpu() -> bool:
    """Whether the driver's own tool lists a GPU."""
    return succeeds(["nvidia-smi", "--list-gpus"])


def plan_of(python: Path, requirement: str) -> dict[str, Any]:
    """Which package pip would install for a requirement, as its installation report; or none.

    It reads metadata alone where the registry offers that, and fetches no dependencies.
    """
    command = [str(python), "-m", "pip", "install", "-qq", "--dry-run", "--no-deps"]
    answer = subprocess.run(
        [*command, "--report", "-", requirement], stdout=subprocess.PIPE, check=True
    )
    plan: dict[str, Any] = json.loads(answer.stdout)
    return plan


def brings_cuda(plan: Mapping[str, Any]) -> bool:
    """Whether the packages of an installation report depend on packages of CUDA."""
    needed = (
        name.lower() for item in plan["install"] for name in item["metadata"]["requires_dist"]
    )
    return any(name.startswith(("nvidia-", "cuda-")) for name in needed)


def pip(python: Path, command: str, *arguments: str) -> None:
    """Run pip, which stays silent but for errors."""
    quiet = ["-qq", "--no-compile"]
    subprocess.run([str(python), "-m", "pip", command, *quiet, *arguments], check=True)


def compile_bytecode(folder: Path, python: Path) -> None:
    """What `--no-compile` left out, on all cores: pip itself would use one."""
    # Files for other versions of Python do not compile, and are never imported.
    subprocess.run([str(python), "-m", "compileall", "-qq", "-j", "0", str(folder)], check=False)


def succeeds(command: Sequence[str]) -> bool:
    """Whether a command is there and exits with 0."""
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def say(text: str) -> None:
    """Tell the user what is going on, before it goes on."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))

"""What the measurements ran on: `python -m benchmarks.machine THREADS` prints it as JSON."""

import json
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

INSTRUCTIONS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""What decides how fast matrix products are."""

PACKAGES = ("torch", "transformers", "accelerate")


def describe(threads: int) -> dict[str, Any]:
    """The machine, its software, and its measured peaks in FLOP/s; in a process of its own."""
    words = [sys.executable, "-m", "benchmarks.machine", str(threads)]
    answer = subprocess.run(words, stdout=subprocess.PIPE, check=True, cwd=ROOT)
    description: dict[str, Any] = json.loads(answer.stdout)
    return description


def measure(threads: int) -> dict[str, Any]:
    """The same, in this process."""
    cpu = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    return {
        "cpu": _field(cpu, "model name"),
        "instructions": [name for name in INSTRUCTIONS if name in _field(cpu, "flags").split()],
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in PACKAGES},
        "threads": threads,
        "peaks": _peaks(threads),
    }


def _peaks(threads: int) -> dict[str, float]:
    import torch

    from megalith.train.metrics import measured_peak

    torch.set_num_threads(threads)
    fp32 = measured_peak(torch.float32, seconds=4.0)
    bf16 = measured_peak(torch.bfloat16, seconds=4.0)
    # Without instructions for bf16 the fastest way is to widen the factors.
    return {"fp32": fp32, "bf16": max(fp32, bf16), "native bf16": bf16}


def _field(text: str, name: str) -> str:
    """A field of /proc/cpuinfo, of the first core that has it."""
    lines = (line.partition(":") for line in text.splitlines())
    return next((value.strip() for key, _, value in lines if key.strip() == name), "unknown")


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))

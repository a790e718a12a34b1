"""What is measured: a model with its batch, trained by a contender. Imports no torch."""

import dataclasses
import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """A GPT-2-shaped model (tied embeddings, no dropout) and the step that it is trained with.

    `batch` counts the sequences of a step over all processes.
    """

    hidden: int
    heads: int
    dtype: str  # "fp32" or "bf16"
    layers: int = 12
    sequence: int = 512
    batch: int = 8
    vocabulary: int = 50304

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.sequence

    @property
    def title(self) -> str:
        return (
            f"{self.layers} layers, hidden {self.hidden}, {self.heads} heads, "
            f"{self.batch} x {self.sequence} tokens, vocabulary {self.vocabulary}, {self.dtype}"
        )


@dataclass(frozen=True)
class Contender:
    """A way to train. `tuned`: malloc keeps large buffers, set as Megalith sets it for itself."""

    trainer: str
    compiled: bool = False
    tuned: bool = False

    @property
    def name(self) -> str:
        return self.trainer + "+compile" * self.compiled + "+malloc" * self.tuned


@dataclass(frozen=True)
class Job:
    """One measurement: `steps` steps of a contender in fresh processes."""

    workload: Workload
    contender: Contender
    steps: int
    processes: int
    threads: int

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @staticmethod
    def from_json(text: str) -> "Job":
        values = json.loads(text)
        workload = Workload(**values.pop("workload"))
        return Job(workload, Contender(**values.pop("contender")), **values)

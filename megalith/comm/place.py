"""Which process of a run this one is. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass

from megalith.errors import MegalithError


@dataclass(frozen=True)
class Place:
    """A process among all of the run and among those on its host."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @staticmethod
    def from_environment(environment: Mapping[str, str]) -> "Place":
        """Reads what torchrun and torch.distributed.launch set; without it the process is alone.

        A run started by hand on one host needs RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT only.
        Raises MegalithError for a variable that is missing, no number or out of range.
        """
        world_size = _number(environment, "WORLD_SIZE", 1)
        if world_size == 1:
            return Place()
        for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
            if name not in environment:
                raise MegalithError(_incomplete(name, world_size))
        rank = _number(environment, "RANK", 0)
        if not 0 <= rank < world_size:
            raise MegalithError(
                f"the environment says RANK={rank} and WORLD_SIZE={world_size}: a rank is at least "
                f"0 and below WORLD_SIZE. Start the run with torchrun, which sets both."
            )
        return Place(
            rank,
            world_size,
            _number(environment, "LOCAL_RANK", rank),
            _number(environment, "LOCAL_WORLD_SIZE", world_size),
        )


def _number(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal():
        raise MegalithError(
            f"the environment says {name}={text!r}, which is no number: this process cannot know "
            f"its place in the run. Unset it, or start the run with torchrun, which sets it."
        )
    return int(text)


def _incomplete(name: str, world_size: int) -> str:
    return (
        f"the environment says WORLD_SIZE={world_size} but has no {name}: this process cannot find "
        f"the others. Start the run with torchrun, which sets all of them, or unset WORLD_SIZE to "
        f"train in one process."
    )

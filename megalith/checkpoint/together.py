"""Work that all ranks do, of which one may fail: then all learn why, and nobody waits for ever."""

from collections.abc import Callable

from megalith.comm.collectives import broadcast_text, first_rank_with
from megalith.comm.mesh import Mesh
from megalith.errors import MegalithError


def together(mesh: Mesh, work: Callable[[], None], told: Callable[[int, str], str]) -> None:
    """Does this rank's work; every rank calls it.

    Raises:
        MegalithError: on all ranks alike, if a file could not be read or written on any, or was
            refused. The text is what `told` makes of the first such rank and of what it met.
    """
    problem: str | None = None
    try:
        work()
    except (OSError, MegalithError) as error:
        problem = str(error)
    rank = first_rank_with(mesh, problem is not None)
    if rank is not None:
        raise MegalithError(told(rank, broadcast_text(mesh, problem or "", rank)))

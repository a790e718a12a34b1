"""SIGTERM and SIGUSR1 ask a run to save and stop at the next step boundary."""

import signal
from types import FrameType, TracebackType

from megalith.comm.collectives import agree
from megalith.comm.mesh import Mesh

STOPPING = (signal.SIGTERM, signal.SIGUSR1)


class StopSignals:
    """Remembers, while entered, which of the two signals came; does nothing else about them.

    A signal may come in the middle of a collective, and to one rank only, so acting on it is left
    to the step boundary, where all ranks ask `agreed`. With `enabled` False signals keep their
    usual meaning.
    """

    def __init__(self, enabled: bool = True) -> None:
        self._signals = STOPPING if enabled else ()
        self._received: set[int] = set()
        self._former: dict[int, object] = {}

    def __enter__(self) -> "StopSignals":
        for number in self._signals:
            self._former[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._former.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self._received.add(number)

    @property
    def flags(self) -> list[bool]:
        """For each of STOPPING whether it came to this rank."""
        return [number in self._received for number in STOPPING]

    def agreed(self, mesh: Mesh) -> str | None:
        """The name of a signal that came to any rank, the same on all; one tiny exchange."""
        came = agree(mesh, self.flags)
        return next((s.name for s, flag in zip(STOPPING, came, strict=True) if flag), None)

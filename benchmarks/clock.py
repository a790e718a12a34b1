"""When each step ended, and what it found."""

from time import perf_counter


class Clock:
    """Told by a trainer when it begins, and after each step.

    A step ends when its loss is a number, so that nothing is left to be computed.
    """

    def __init__(self) -> None:
        self.parameters = 0
        self.losses: list[float] = []
        self.seconds: list[float] = []
        self._last = 0.0

    def begin(self, parameters: int) -> None:
        """The model is there, with so many parameters; the first step comes next."""
        self.parameters = parameters
        self._last = perf_counter()

    def finished(self, loss: float) -> None:
        """A step has ended."""
        now = perf_counter()
        self.seconds.append(now - self._last)
        self.losses.append(loss)
        self._last = now

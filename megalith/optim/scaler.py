"""The loss scale that keeps float16 gradients above the smallest number (Micikevicius 2018)."""

from typing import Any

from megalith.config.schema import PrecisionConfig

GROWTH, BACKOFF = 2.0, 0.5
"""What the dynamic scale is multiplied by after a clean window, and after overflows."""


class LossScaler:
    """A constant scale: 1 where none is needed, or what `--loss-scale` says.

    Only a `dynamic` one takes Inf and NaN as a sign of its own being too large.
    """

    dynamic = False

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    @staticmethod
    def of(precision: PrecisionConfig) -> "LossScaler":
        """The scaler of a resolved configuration: dynamic for float16 without `--loss-scale`."""
        if precision.loss_scale is not None:
            return LossScaler(precision.loss_scale)
        if precision.params_dtype == "float16":
            return DynamicLossScaler(precision)
        return LossScaler()

    def update(self, overflowed: bool) -> None:
        """Takes note of a step, before the weights change: whether any rank saw Inf or NaN.

        All ranks must call it with the same value, so that their scales stay equal.
        """

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps, in JSON; nothing for a constant scale."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continues from `state()`; an empty one (another kind of scaler) changes nothing."""


class DynamicLossScaler(LossScaler):
    """Doubles after a window of clean steps; halves at overflows once the hysteresis is spent.

    Megatron-LM's rule: the hysteresis comes back only when the scale grows.
    """

    dynamic = True

    def __init__(self, precision: PrecisionConfig) -> None:
        super().__init__(precision.initial_loss_scale)
        self._smallest = precision.min_loss_scale
        self._window = precision.loss_scale_window
        self._hysteresis = precision.hysteresis
        self._clean_steps = 0
        self._patience = precision.hysteresis

    def update(self, overflowed: bool) -> None:
        if overflowed:
            self._shrink()
        else:
            self._grow()

    def _shrink(self) -> None:
        self._clean_steps = 0
        self._patience -= 1
        if self._patience <= 0:
            self.scale = max(self.scale * BACKOFF, self._smallest)

    def _grow(self) -> None:
        self._clean_steps += 1
        if self._clean_steps == self._window:
            self._clean_steps = 0
            self._patience = self._hysteresis
            self.scale *= GROWTH

    def state(self) -> dict[str, Any]:
        return {
            "scale": self.scale,
            "clean_steps": self._clean_steps,
            "patience": self._patience,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        if state:
            self.scale = state["scale"]
            self._clean_steps = state["clean_steps"]
            self._patience = state["patience"]

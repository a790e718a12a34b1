"""The loss scale follows Megatron-LM's rule, step by step."""

from hypothesis import given, settings
from hypothesis import strategies as st

from megalith.config.schema import PrecisionConfig
from megalith.optim.scaler import LossScaler


def _float16(**changes: float) -> LossScaler:
    return LossScaler.of(PrecisionConfig(params_dtype="float16", **changes))  # type: ignore[arg-type]


def test_only_float16_is_scaled() -> None:
    for dtype in ("float32", "bfloat16", "float64"):
        scaler = LossScaler.of(PrecisionConfig(params_dtype=dtype))
        scaler.update(overflowed=True)
        assert (scaler.scale, scaler.dynamic, scaler.state()) == (1.0, False, {})
    assert _float16().scale == 2.0**32 and _float16().dynamic


def test_fixed_scale_stays() -> None:
    scaler = _float16(loss_scale=128.0)
    scaler.update(overflowed=True)
    assert scaler.scale == 128.0 and not scaler.dynamic


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.booleans(), max_size=60),
    st.integers(1, 4),
    st.integers(1, 5),
    st.integers(0, 60),
)
def test_scale_follows_the_rule_also_across_a_resume(
    overflows: list[bool], hysteresis: int, window: int, stop: int
) -> None:
    settings = {"hysteresis": hysteresis, "loss_scale_window": window, "min_loss_scale": 8.0}
    scaler = _float16(initial_loss_scale=64.0, **settings)
    scale, patience, clean = 64.0, hysteresis, 0
    for step, overflowed in enumerate(overflows):
        if step == stop:
            resumed = _float16(initial_loss_scale=1.0, **settings)
            resumed.load_state(scaler.state())
            scaler = resumed
        scaler.update(overflowed)
        if overflowed:
            clean, patience = 0, patience - 1
            if patience <= 0:
                scale = max(scale / 2, 8.0)
        else:
            clean += 1
            if clean == window:
                clean, patience, scale = 0, hysteresis, scale * 2
        assert scaler.scale == scale

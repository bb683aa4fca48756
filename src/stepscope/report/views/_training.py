"""Times, rates, speed-up and efficiency of training runs as tables show them."""

from __future__ import annotations

from dataclasses import replace

from stepscope.core.units import format_percent, format_plus_minus
from stepscope.records.training import Measured, ScalingRow, TrainingRun
from stepscope.report.table import Format, Tone, Value, duration, unknown
from stepscope.results.figures import exposed_fraction

_TONES: dict[str, Tone] = {
    "excellent": "good",
    "good": "good",
    "fair": "warn",
    "poor": "bad",
    "negative": "bad",
}


def first_epochs(drop_epochs: int) -> str:
    """``the first epoch``, ``the first 3 epochs``."""
    return "the first epoch" if drop_epochs == 1 else f"the first {drop_epochs} epochs"


def speedup_value(row: ScalingRow | None) -> Value:
    """``3.49x``; ``3.49x (3.41 to 3.58)`` with an interval."""
    if row is None:
        return unknown()
    text = f"{row.speedup:.2f}x"
    if row.low is None or row.high is None:
        return Value(text=text, raw=row.speedup)
    return Value(text=f"{text} ({row.low:.2f} to {row.high:.2f})", compact=text, raw=row.speedup)


def efficiency_value(row: ScalingRow | None, *, digits: int = 1) -> Value:
    """``87.3% good``; ``baseline``; a speed-up that is not rated says so."""
    if row is None:
        return unknown()
    if row.is_baseline:
        return Value(text="baseline", compact="base", raw=row.efficiency, tone="dim")
    share = format_percent(row.efficiency, digits=digits)
    rating = row.rating or "not rated"
    return Value(
        text=f"{share} {rating}",
        compact=share,
        raw=row.efficiency,
        tone=_TONES.get(row.rating or "", "bad"),
    )


def interval_text(middle: float, low: float | None, high: float | None) -> str:
    """``±2%``, the larger side of the interval; empty where there is none."""
    if low is None or high is None or middle <= 0:
        return ""
    return format_plus_minus(max(high - middle, middle - low) / middle)


def measured(value: Measured | None, form: Format, *, estimated: bool = False, tight: bool = False) -> Value:
    """``1.23 s ±2% est.``: the larger side of the interval in per cent of the median. tight: with it in narrow displays."""
    if value is None:
        return unknown()
    around, text = interval_text(value.value, value.low, value.high), form.write(value.value)
    short = ("~" if estimated else "") + text + around if tight else text if around else None
    return Value(
        text=" ".join(part for part in (text, around, "est." if estimated else "") if part),
        compact=short,
        raw=value.value,
    )


def exposed_value(run: TrainingRun, *, tight: bool = False) -> Value:
    """Exposed communication of a step with its share; ``none`` for one rank."""
    exposed = run.exposed_comm_ns
    value = measured(exposed, duration, tight=tight)
    share = exposed_fraction(run)
    if exposed is None or share is None:
        return value
    if exposed.value == 0 and run.world_size == 1:
        return Value(text="none", raw=0, tone="dim")
    return replace(value, text=f"{value.text} ({format_percent(share, digits=0)})")

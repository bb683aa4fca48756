"""Speed-up and efficiency as tables show them."""

from __future__ import annotations

from stepscope.core.units import format_percent
from stepscope.records.training import ScalingRow
from stepscope.report.tables._common import Tone, Value, unknown

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


def efficiency_value(row: ScalingRow | None) -> Value:
    """``87.3 % good``; ``baseline``; a speed-up that cannot be has no rating and says so."""
    if row is None:
        return unknown()
    if row.is_baseline:
        return Value(text="baseline", compact="base", raw=row.efficiency, tone="dim")
    share = format_percent(row.efficiency, digits=1)
    rating = row.rating or "not possible"
    return Value(
        text=f"{share} {rating}",
        compact=share.replace(" ", ""),
        raw=row.efficiency,
        tone=_TONES.get(row.rating or "", "bad"),
    )

"""Times, rates, speed-up and efficiency of training runs as tables show them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from stepscope.core.units import format_number, format_percent, format_plus_minus
from stepscope.core.words import listed
from stepscope.records.nouns import Measured
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.report.table import Column, Format, Tone, Value, duration, percent, rate, unknown
from stepscope.results.figures import exposed_fraction
from stepscope.results.scaling import is_plain

_TONES: dict[str, Tone] = {"excellent": "good", "good": "good", "fair": "warn", "poor": "bad", "negative": "bad"}


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


def rate_column(runs: Iterable[TrainingRun], get: Callable[[Any], Any], **how: Any) -> Column:
    """Throughput under the unit that ``runs`` count in: ``tokens/s``; ``per s`` with it beside each where they differ.

    get: a row's item -> Measured or 1/s. of: the item's run, where it is not the item itself.
    """
    of = how.pop("of", lambda item: item)
    units = {run.unit for run in runs if run.status == "ok"} or {"samples"}

    def value(item: Any) -> Value:
        found = get(item)
        unit = of(item).unit if len(units) > 1 else ""
        form = Format(lambda per_s: f"{format_number(per_s, 3)} {unit}/s") if unit else rate
        return measured(found if isinstance(found, Measured | None) else Measured(value=found), form)

    return Column("samples_per_s", f"{units.pop()}/s" if len(units) == 1 else "per s", value, rate, **how)


def efficiency_value(row: ScalingRow | None) -> Value:
    """``87.3% good``; ``baseline``; a speed-up that is not rated says so."""
    if row is None:
        return unknown()
    if row.is_baseline:
        return Value(text="baseline", compact="base", raw=row.efficiency, tone="dim")
    return Value(
        text=f"{format_percent(row.efficiency, digits=1)} {row.rating or 'not rated'}",
        compact=format_percent(row.efficiency),
        raw=row.efficiency,
        tone=_TONES.get(row.rating or "", "bad"),
    )


def baselines_said(runs: Iterable[TrainingRun], scaling: Iterable[ScalingRow]) -> tuple[str, ...]:
    """Which runs speed-ups refer to, where one is no plain process on one rank."""
    by_id = {run.run_id: run for run in runs}
    bases = dict.fromkeys(row.baseline_id for row in scaling if not row.is_baseline)
    known = [by_id[base] for base in bases if base in by_id]
    if all(run.world_size == 1 and is_plain(run) for run in known):
        return ()
    named = listed(list(dict.fromkeys(run.label for run in known)), at_most=4, between="; ")
    return (f"{'baselines' if len(known) > 1 else 'baseline'}: {named}.",)


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


NONE = "none"
"""Where there is no communication: of one rank."""


def exposed_value(run: TrainingRun) -> Value:
    """Exposed communication of a step with its share; ``none`` for one rank."""
    exposed = run.exposed_comm_ns
    value = measured(exposed, duration, tight=True)
    share = exposed_fraction(run)
    if exposed is None or share is None:
        return value
    if exposed.value == 0 and run.world_size == 1:
        return Value(text=NONE, raw=0, tone="dim")
    return replace(value, text=f"{value.text} ({format_percent(share)})")


def exposed_share(run: TrainingRun) -> Value:
    """Exposed communication as a share of the step or epoch; ``none`` for one rank."""
    share = exposed_fraction(run)
    return Value(text=NONE, raw=share, tone="dim") if share == 0 and run.world_size == 1 else percent(share)

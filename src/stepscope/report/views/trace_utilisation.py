"""How busy the device was kept: MFU and HFU of each rank, launches and the queue before the device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from stepscope.core.dataclass import dataclass
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.trace_budget import Utilisation
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import LaunchStatistics
from stepscope.report.shared.traces import NOTHING, by_ranks, gaps, many_note, rank_column, standing_out
from stepscope.report.table import (
    Column,
    Format,
    Table,
    Tone,
    Value,
    duration,
    flops,
    judged,
    number,
    percent,
    tabled,
    unknown,
)
from stepscope.report.view import View

MANY_OPERATORS = 4


def utilisation_table(summary: TraceSummary) -> Table:
    """One row per rank for its median step, then one per step and rank; without MFU and HFU the rate that was reached, and
    why there are none."""
    known = [p.utilisation for p in summary.ranks if p.utilisation is not None]
    shown = [u for u in known if u.step_ns and (u.model_flop is not None or u.hardware_flop is not None)]
    kept = {p.facts.rank: {s.step for s in p.steps} for p in summary.ranks}
    items = [
        _Use(u, "median", u.step_ns, u.mfu, u.hfu) for u in standing_out(shown, lambda u: -(u.hfu or u.mfu or 0.0))
    ]
    several = [u for u in shown if len(u.steps) > 1 and u.peak_flops_per_s is not None]
    for step in sorted({s.step for u in several for s in u.steps if s.step in kept[u.rank]}):
        items += [_Use(u, step, s.step_ns, s.mfu, s.hfu) for u in several for s in u.steps if s.step == step]
    return tabled(
        "utilisation",
        "Utilisation",
        (
            rank_column(lambda use: use.of.rank),
            Column("step", "step", lambda use: use.step, role="identity", lead=True),
            Column("duration", "step time", lambda use: use.step_ns, duration),
            Column("mfu", "MFU", lambda use: _share(use.mfu), percent),
            Column("hfu", "HFU", lambda use: _share(use.hfu), percent),
            Column("rate", "reached", _rate, flops),
            Column("peak", "peak", lambda use: use.of.peak_flops_per_s, flops),
            Column("dtype", "type", lambda use: use.of.dtype),
            Column("device", "device", lambda use: use.of.device_name, drop=1),
        ),
        items,
        footnotes=_footnotes(shown),
        notes=_utilisation_notes(summary),
    )


@dataclass(frozen=True, slots=True)
class _Use:
    """A rank's median step, or one of its steps."""

    of: Utilisation
    step: str | int
    step_ns: float | None
    mfu: float | None
    hfu: float | None


def _rate(use: _Use) -> float | None:
    flop = use.of.model_flop if use.of.model_flop is not None else use.of.hardware_flop
    return flop / (use.step_ns / 1e9) / use.of.devices if flop is not None and use.step_ns else None


def _share(fraction: float | None) -> Value:
    if fraction is None:
        return unknown()
    tone: Tone = "bad" if fraction > 1 else "plain"
    return Value(text=format_percent(fraction, digits=1 if fraction >= 0.01 else 2), raw=fraction, tone=tone)


def _footnotes(shown: list[Utilisation]) -> tuple[str, ...]:
    sources = {
        "given": "FLOP as given",
        "recorded": "FLOP recorded by the profiler",
        "shapes": "FLOP of matrix products and convolutions from recorded shapes",
    }
    flop = sorted({sources.get(u.flop_source, u.flop_source) for u in shown if u.flop_source})
    covers = [u.flop_coverage for u in shown if u.flop_coverage is not None]
    if covers:
        flop.append(f"they cover {_range(covers)} of the time of matrix kernels")
    peaks = sorted({u.peak_source for u in shown if u.peak_source})
    return (
        *sorted({u.formula for u in shown if u.peak_flops_per_s is not None}),
        "; ".join([*flop, *(f"peak: {p}" for p in peaks)]),
        "MFU counts the model's FLOP once, HFU what ran, recomputation included; 2 FLOP a multiply-add",
        *many_note(len(shown), "those with the lowest utilisation"),
    )


def _range(shares: list[float]) -> str:
    least, most = format_percent(min(shares)), format_percent(max(shares))
    return least if least == most else f"{least} to {most}"


def _utilisation_notes(summary: TraceSummary) -> tuple[str, ...]:
    """Every reason once, with the ranks it holds for."""
    ranks_by_text: dict[str, list[int]] = defaultdict(list)
    for each in summary.ranks:
        u = each.utilisation
        if u is None:
            ranks_by_text[each.unread or NOTHING if each.budget is None else "not computed"].append(each.facts.rank)
            continue
        for text in (u.error, u.unavailable, _incomplete(u)):
            if text:
                ranks_by_text[text].append(u.rank)
    return by_ranks(summary, ranks_by_text)


def _incomplete(u: Utilisation) -> str | None:
    if not u.flop_incomplete or (u.model_flop is None and u.hardware_flop is None):
        return None
    names = ", ".join(u.flop_incomplete[:MANY_OPERATORS])
    more = len(u.flop_incomplete) - MANY_OPERATORS
    return f"FLOP not counted of {names}{f' and {more} more' if more > 0 else ''}: the figures are too low"


NO_DEVICE = "no device work in this trace: nothing was launched"


def launches_table(summary: TraceSummary) -> Table:
    """One row a rank."""
    known = [p.launches for p in summary.ranks if p.launches is not None and p.launches.unavailable is None]
    rows = standing_out(known, lambda s: s.late_share or 0.0)

    def delay(field: str) -> Callable[[LaunchStatistics], float | None]:
        return lambda s: getattr(s.delay, field) if s.delay else None

    def share(value: Callable[[LaunchStatistics], float | None], warn: float, bad: float) -> Callable[[Any], Value]:
        return lambda s: percent(value(s), tone=judged(value(s), warn, bad))

    return tabled(
        "launches",
        "Launches",
        (
            rank_column(lambda s: s.rank),
            Column("launched", "launched", lambda s: s.launched, number),
            Column("per_s", "a second", lambda s: s.launches_per_s, number, unit="1/s", drop=3),
            Column("call", "call", lambda s: s.call and s.call.median_ns, duration),
            Column("delay", "delay", delay("median_ns"), duration),
            Column("delay_p90", "p90", delay("p90_ns"), duration, drop=2),
            Column("delay_max", "longest", delay("max_ns"), duration, drop=1),
            Column("late_share", "late", share(lambda s: s.late_share, 0.3, 0.6), percent),
            Column("short_count", "short", _short, number),
            Column("queue_mean", "queue", lambda s: s.queue and s.queue.mean, Format("{:.3g}".format)),
            Column("queue_longest", "most", lambda s: s.queue and s.queue.longest, number),
            Column("queue_empty_share", "empty", share(_empty, 0.5, 0.8), percent),
        ),
        rows,
        footnotes=(
            "call: how long a launching call takes (median); delay: from that call to the start of the work "
            "(median, 90th percentile, longest)",
            "late: launched only when its stream had run dry; short: over sooner than its launching call took",
            "queue: launched and not yet started, mean and most; empty: share of the time with nothing queued",
            *many_note(len(rows), "those launching late most often"),
        ),
        notes=(
            *gaps(
                summary,
                "launches",
                lambda p: p.launches is not None and p.launches.unavailable is None,
                otherwise=_reason(summary),
            ),
            *_launches_notes(known),
        ),
    )


def _empty(s: LaunchStatistics) -> float | None:
    return s.queue.empty_share if s.queue else None


def _short(s: LaunchStatistics) -> Value:
    share = s.short_count / s.launched if s.launched else 0.0
    return Value(text=f"{s.short_count:,} {format_percent(share):>4}", raw=s.short_count, tone=judged(share, 0.5, 0.8))


def _reason(summary: TraceSummary) -> str:
    return next((p.launches.unavailable for p in summary.ranks if p.launches and p.launches.unavailable), NO_DEVICE)


def _launches_notes(known: list[LaunchStatistics]) -> list[str]:
    notes = []
    if unlinked := sum(s.unlinked for s in known):
        total = unlinked + sum(s.launched for s in known)
        notes.append(
            f"{counted(unlinked, 'device event')} of {total:,} have no launch in the trace: "
            "launched before the capture, or not recorded"
        )
    if early := sum(s.early for s in known):
        notes.append(f"{counted(early, 'event')} start before their launch: host and device clocks disagree")
    slow = [s for s in known if s.delay and s.delay.median_ns >= 1e6 and s.queue and s.queue.empty_share < 0.01]
    if slow:
        least = min(s.delay.median_ns for s in slow if s.delay)
        notes.append(
            f"delays of {format_duration(least)} and more with a queue that is never empty are good: "
            "the host is that far ahead of the device"
        )
    return notes


VIEWS = (
    View("trace_utilisation", "Utilisation", needs=("trace",), table=utilisation_table),
    View("trace_launches", "Launches", needs=("trace",), table=launches_table),
)

"""How each rank's host kept its device supplied with work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import LaunchStatistics
from stepscope.report.table import Column, Format, Table, Value, duration, judged, number, percent, tabled
from stepscope.report.view import View
from stepscope.report.views._trace import gaps, many_note, rank_column, standing_out

NO_DEVICE = "no device work in this trace: nothing was launched"


def build(summary: TraceSummary) -> Table:
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
            *_notes(known),
        ),
    )


def _empty(s: LaunchStatistics) -> float | None:
    return s.queue.empty_share if s.queue else None


def _short(s: LaunchStatistics) -> Value:
    share = s.short_count / s.launched if s.launched else 0.0
    return Value(text=f"{s.short_count:,} {format_percent(share):>4}", raw=s.short_count, tone=judged(share, 0.5, 0.8))


def _reason(summary: TraceSummary) -> str:
    return next((p.launches.unavailable for p in summary.ranks if p.launches and p.launches.unavailable), NO_DEVICE)


def _notes(known: list[LaunchStatistics]) -> list[str]:
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


VIEW = View(key="trace_launches", title="Launches", needs=("trace",), table=build)

"""How each rank's host kept its device supplied with work."""

from __future__ import annotations

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import LaunchStatistics
from stepscope.report.tables._common import Column, Row, Table, TableKind, Tone, Value, unknown
from stepscope.report.tables._trace import duration, gaps, many_note, number, percent, standing_out

NO_DEVICE = "no device work in this trace: nothing was launched"


def build(summary: TraceSummary) -> Table:
    """One row a rank."""
    known = [p.launches for p in summary.ranks if p.launches is not None and p.launches.unavailable is None]
    rows = standing_out(known, lambda s: s.late_share or 0.0)
    return Table(
        key="launches",
        title="Launches",
        columns=(
            Column(key="rank", title="rank", role="identity", lead=True),
            Column(key="launched", title="launched"),
            Column(key="per_s", title="a second", unit="1/s", drop=3),
            Column(key="call", title="call", unit="ns"),
            Column(key="delay", title="delay", unit="ns"),
            Column(key="delay_p90", title="p90", unit="ns", drop=2),
            Column(key="delay_max", title="longest", unit="ns", drop=1),
            Column(key="late_share", title="late"),
            Column(key="short_count", title="short"),
            Column(key="queue_mean", title="queue"),
            Column(key="queue_longest", title="most"),
            Column(key="queue_empty_share", title="empty"),
        ),
        rows=tuple(_row(s) for s in rows),
        footnotes=(
            "call: how long a launching call takes (median); delay: from that call to the start of the work "
            "(median, 90th percentile, longest)",
            "late: launched only when its stream had run dry; short: over sooner than its launching call took",
            "queue: launched and not yet started, mean and most; empty: share of the time with nothing queued",
            *many_note(len(rows), "those launching late most often"),
        )
        if rows
        else (),
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


TABLE = TableKind(key="launches", title="Launches", needs=("trace",), build=build)


def _reason(summary: TraceSummary) -> str:
    return next((p.launches.unavailable for p in summary.ranks if p.launches and p.launches.unavailable), NO_DEVICE)


def _row(s: LaunchStatistics) -> Row:
    short = s.short_count / s.launched if s.launched else 0.0
    empty = None if s.queue is None else s.queue.empty_share
    return Row(
        values=(
            Value(text=str(s.rank), raw=s.rank),
            number(s.launched),
            number(s.launches_per_s),
            duration(s.call.median_ns) if s.call else unknown(),
            duration(s.delay.median_ns) if s.delay else unknown(),
            duration(s.delay.p90_ns) if s.delay else unknown(),
            duration(s.delay.max_ns) if s.delay else unknown(),
            percent(s.late_share, tone=_tone(s.late_share, 0.3, 0.6)),
            Value(text=f"{s.short_count:,} {short:4.0%}", raw=s.short_count, tone=_tone(short, 0.5, 0.8)),
            unknown() if s.queue is None else Value(text=f"{s.queue.mean:.3g}", raw=s.queue.mean),
            number(None if s.queue is None else s.queue.longest),
            percent(empty, tone=_tone(empty, 0.5, 0.8)),
        )
    )


def _tone(share: float | None, warn: float, bad: float) -> Tone:
    if share is None or share < warn:
        return "plain"
    return "bad" if share >= bad else "warn"


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

"""The timeline of a step: its buckets with what is exposed of each, as a table and as a picture in characters."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_bytes_binary, format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.prediction import BucketSpan, Timeline
from stepscope.report.table import (
    Column,
    Table,
    Value,
    binary_size,
    duration,
    judged,
    number,
    said,
    tabled,
    whole,
    with_share,
)
from stepscope.report.view import View

NAMED = 3
"""So many members are named, the others counted."""

MOST_ROWS = 16
"""A picture with more buckets has a row for each lane instead of one for each bucket."""

FORWARD, BACKWARD, AFTER, QUEUED, HIDDEN, EXPOSED = "░", "█", "░", "·", "▒", "▓"


def build(timeline: Timeline) -> Table:
    """One row per collective, in launch order; times since the backward pass began."""
    return tabled(
        "timeline",
        "Predicted bucket timeline",
        (
            Column("bucket", "bucket", lambda b: b.index, whole, role="identity", lead=True),
            Column("op", "operation", lambda b: b.op, role="identity"),
            Column("dtype", "type", lambda b: b.dtype, role="identity"),
            Column("size", "size", lambda b: b.size_bytes, binary_size, role="identity", lead=True),
            Column("count", "gradients", lambda b: len(b.members), number, short_title="grads"),
            Column("members", "members", lambda b: said(_names(b.members), " ".join(b.members)), drop=1),
            Column("ready", "ready", lambda b: b.ready_ns, duration),
            Column("launch", "launch", lambda b: b.launch_ns, duration, drop=2),
            Column("start", "start", lambda b: b.start_ns, duration, drop=3),
            Column("end", "end", lambda b: b.end_ns, duration),
            Column("exposed", "exposed", _exposed, duration),
        ),
        timeline.buckets,
        footnotes=(_sentence(timeline), "times since the backward pass began; MiB = 2^20 bytes"),
        notes=() if timeline.buckets else ("no communication in this step",),
    )


def picture(timeline: Timeline, *, width: int = 100) -> tuple[str, ...]:
    """Lines of at most ``width`` characters: computation above, what travels below, one character a span of time.

    A row for each bucket, or for each lane when there are many; the last line explains the signs.
    """
    labels, rows = _bars(timeline)
    margin = max(len(label) for label in ("compute", *labels)) + 1
    columns = max(20, width - margin - 1)
    total = max(1, timeline.step_ns)
    lines = [f"{'':{margin}}{_axis(total, columns)}"]
    for label, spans in zip(("compute", *labels), (_compute(timeline), *rows), strict=True):
        lines.append(f"{label:<{margin}}{_draw(spans, total=total, columns=columns)}".rstrip())
    signs = (
        (BACKWARD, "backward"),
        (FORWARD, "forward, optimizer"),
        (QUEUED, "waits for its turn"),
        (HIDDEN, "hidden"),
        (EXPOSED, "exposed"),
    )
    return (*lines, " " * margin + "  ".join(f"{sign} {what}" for sign, what in signs))


def _exposed(bucket: BucketSpan) -> Value:
    took = bucket.end_ns - bucket.start_ns
    share = bucket.exposed_ns / took if took else 0.0
    return with_share(bucket.exposed_ns, share, judged(share, 0.5, 0.9))


def _names(members: Sequence[str]) -> str:
    if len(members) <= NAMED:
        return ", ".join(members)
    return f"{members[0]} .. {members[-1]}"


def _sentence(timeline: Timeline) -> str:
    hidden = timeline.hidden_fraction
    share = "" if hidden is None else f", {format_percent(hidden)} of {format_duration(timeline.comm_ns)} hidden"
    slowed = timeline.backward_ns - timeline.backward_alone_ns
    beside = f" (+{format_duration(slowed)} beside communication)" if slowed else ""
    return (
        f"step {format_duration(timeline.step_ns)} = {format_duration(timeline.before_ns)} before + backward "
        f"{format_duration(timeline.backward_ns)}{beside} + exposed {format_duration(timeline.exposed_ns)} + "
        f"{format_duration(timeline.after_ns)} after; {counted(len(timeline.buckets), 'collective')}{share}"
    )


_Bar = tuple[int, int, str]
"""From, to (ns since the step began), sign."""


def _compute(timeline: Timeline) -> list[_Bar]:
    backward_end = timeline.before_ns + timeline.backward_ns
    tail_end = backward_end + timeline.exposed_ns
    return [
        (0, timeline.before_ns, FORWARD),
        (timeline.before_ns, backward_end, BACKWARD),
        (tail_end, tail_end + timeline.after_ns, AFTER),
    ]


def _bars(timeline: Timeline) -> tuple[list[str], list[list[_Bar]]]:
    """Labels and bars of the rows below the computation."""
    many = len(timeline.buckets) > MOST_ROWS
    rows: dict[str, list[_Bar]] = {}
    for bucket in sorted(timeline.buckets, key=lambda b: b.lane if many else b.index):
        label = f"lane {bucket.lane}" if many else f"{bucket.index:>2} {format_bytes_binary(bucket.size_bytes)}"
        rows.setdefault(label, []).extend(_bar(bucket, timeline, queue=not many))
    return list(rows), list(rows.values())


def _bar(bucket: BucketSpan, timeline: Timeline, *, queue: bool) -> list[_Bar]:
    origin, backward = timeline.before_ns, timeline.backward_ns
    bars = [
        (bucket.start_ns, min(bucket.end_ns, backward), HIDDEN),
        (max(bucket.start_ns, backward), bucket.end_ns, EXPOSED),
    ]
    if queue:
        bars.insert(0, (bucket.ready_ns, bucket.start_ns, QUEUED))
    return [(origin + start, origin + end, sign) for start, end, sign in bars if end > start]


def _draw(bars: Sequence[_Bar], *, total: int, columns: int) -> str:
    """A bar too short for a character still has one; a later bar of the row is drawn over an earlier one."""
    line = [" "] * columns
    for start, end, sign in bars:
        if end <= start:
            continue
        first = min(columns - 1, round(start * columns / total))
        last = max(first + 1, round(end * columns / total))
        line[first:last] = sign * (min(last, columns) - first)
    return "".join(line)


def _axis(total: int, columns: int) -> str:
    """Times at the quarters of the line, the whole step's at its end."""
    line = [" "] * columns
    for quarter in range(5):
        text = format_duration(total * quarter / 4) if quarter else "0"
        place = round(quarter * columns / 4)
        at = place if quarter == 0 else columns - len(text) if quarter == 4 else place - len(text) // 2
        line[at : at + len(text)] = text
    return "".join(line)


VIEW = View(key="timeline", title="Predicted bucket timeline", needs=("timeline",), table=build)

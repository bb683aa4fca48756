"""The table of collectives, with nccl-tests' columns: one line a size, grouped by what a sweep was measured with."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.errors import UsageError
from stepscope.core.units import format_size
from stepscope.core.words import counted
from stepscope.records.comm import CommRow
from stepscope.report.tables._comm import (
    average_busbw,
    decimal,
    gigabytes,
    head_columns,
    head_values,
    heading,
    in_groups,
    microseconds,
    name,
    number,
    share,
    size_value,
)
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.results.comm_facts import interval_share
from stepscope.results.comm_labels import failure_label, op_label, redop_label, sweep_names, sweeps

MAX_AVERAGES = 4
"""From more sweeps than this on, their averages stand in the overview table only."""


def build(rows: Sequence[CommRow]) -> Table:
    """The table of the collectives among ``rows``; sizes keep their order."""
    mine = [row for row in rows if row.kind == "collective"]
    head = heading(mine)
    ordered = in_groups(mine, head)
    return Table(
        key="comm",
        title="Collectives",
        columns=(*head_columns(head), *_COLUMNS),
        rows=tuple(
            Row(
                values=(*head_values(head, row), *_values(row)),
                failure=None if row.status == "ok" else failure_label(row),
            )
            for row in ordered
        ),
        footnotes=(*average_lines(ordered), *_footnotes(ordered)),
        notes=_notes(ordered),
    )


TABLE = TableKind(key="comm", title="Collectives", needs=("comm_rows",), build=build)


_COLUMNS = (
    Column(key="size_bytes", title="size (B)", unit="bytes", role="identity", lead=True),
    Column(key="count", title="count (elements)", short_title="count", role="identity", drop=6),
    Column(key="dtype", title="type", role="identity"),
    Column(key="reduce_op", title="redop", role="identity"),
    Column(key="root", title="root", role="identity"),
    Column(key="time_ns", title="time (us)", unit="ns"),
    Column(key="algbw", title="algbw (GB/s)", short_title="algbw", unit="bytes_per_s", drop=10),
    Column(key="busbw", title="busbw (GB/s)", short_title="busbw", unit="bytes_per_s"),
    Column(key="correct", title="#wrong"),
    Column(key="interval_fraction", title="±95 %", drop=9),
    Column(key="time_ns_min", title="min (us)", short_title="min", unit="ns", drop=1),
    Column(key="time_ns_p90", title="p90 (us)", short_title="p90", unit="ns", drop=2),
    Column(key="time_ns_p99", title="p99 (us)", short_title="p99", unit="ns", drop=8),
    Column(key="time_ns_max", title="max (us)", short_title="max", unit="ns", drop=3),
    Column(key="rank_spread", title="spread", drop=5),
    Column(key="slowest_rank", title="slowest", drop=4),
    Column(key="link_fraction", title="of link", drop=7),
)


def _values(row: CommRow) -> tuple[Value, ...]:
    return (
        size_value(row),
        number(row.numel),
        name(row.dtype),
        name(redop_label(row)),
        _root(row),
        microseconds(row.time_ns),
        gigabytes(row.algbw_bytes_per_s),
        gigabytes(row.busbw_bytes_per_s),
        _wrong(row),
        _interval(row),
        microseconds(row.time_ns_min),
        microseconds(row.time_ns_p90),
        microseconds(row.time_ns_p99),
        microseconds(row.time_ns_max),
        share(row.rank_spread),
        number(row.slowest_rank),
        share(row.link_fraction),
    )


def _root(row: CommRow) -> Value:
    """-1 for collectives without a root, as in nccl-tests."""
    return Value(text=str(row.root), raw=row.root) if _rooted(row.op) else Value(text="-1", raw=-1)


def _rooted(op: str) -> bool:
    try:
        return COLLECTIVES.load(op).rooted
    except UsageError:  # rows of a collective that is not installed here
        return False


def _wrong(row: CommRow) -> Value:
    if row.correct is None:
        return Value(text="N/A", raw=None, tone="dim")
    return Value(text="0", raw=True) if row.correct else Value(text=">0", raw=False, tone="bad")


def _interval(row: CommRow) -> Value:
    fraction = interval_share(row)
    if fraction is None:
        return unknown()
    text = share(fraction).text
    return Value(text=f"±{text}", compact=f"±{text}".replace(" ", ""), raw=fraction)


def average_lines(rows: Sequence[CommRow]) -> tuple[str, ...]:
    """nccl-tests' average bus bandwidth, one line a sweep, with what it is an average of; none for many sweeps."""
    averages = [(found, mean) for found in sweeps(rows).values() if (mean := average_busbw(found)) is not None]
    if len(averages) > MAX_AVERAGES:
        return ()
    called = sweep_names(rows)
    lines = [
        f"Avg bus bandwidth: {decimal(mean / 1e9)} GB/s, {op_label(found[0])} on {called(found[0])}, {_over(found)}."
        for found, mean in averages
    ]
    if lines:
        lines.append(
            "Avg bus bandwidth is the plain mean over the sizes, as nccl-tests prints it: which sizes were asked for"
            " decides it."
        )
    return tuple(lines)


def _over(sweep: Sequence[CommRow]) -> str:
    measured = [
        row.size_bytes
        for row in sweep
        if row.status == "ok" and row.busbw_bytes_per_s is not None and row.size_bytes is not None
    ]
    missing = len(sweep) - len(measured)
    text = (
        f"{counted(len(measured), 'size')} from {format_size(min(measured))} to {format_size(max(measured))}"
        if len(measured) > 1
        else f"1 size ({', '.join(map(format_size, measured))})"
    )
    return f"{text}, {missing} without a result left out" if missing else text


def _footnotes(rows: Sequence[CommRow]) -> tuple[str, ...]:
    shown = [row for row in rows if row.time_ns is not None]
    if not shown:
        return ()
    paced = {row.pacing for row in shown}
    pacing = {
        "barrier": "an untimed barrier before each call",
        "back_to_back": "calls back to back, no barrier between them",
    }
    how = (
        pacing[next(iter(paced))] if len(paced) == 1 else "with or without an untimed barrier before it, as said above"
    )
    means = all(row.time_ns_median is None for row in shown)
    lines = [
        f"time: of one call, as imported: mean over the calls, in microseconds; {how}."
        if means
        else f"time: of one call on its slowest rank, then the median over the calls; {how}. min, p90, p99, max are of"
        " the same calls, all in microseconds; ±95 %: interval of the median, its larger side.",
        "size: bytes of the tensor, of the larger side where input and output differ, rounded down to whole elements"
        " and equal parts. algbw = size / time and busbw = algbw x the operation's factor (2(n-1)/n for all_reduce)"
        f" from {'that time' if means else 'the median'}, in GB/s (GB = 1e9 bytes).",
    ]
    if any(row.op == "all_to_all_v" for row in shown):
        lines.append("all_to_all_v: size is the most that one rank sends or receives, its own part left out; factor 1.")
    if any(row.in_flight > 1 for row in shown):
        lines.append("Several calls in flight: time is that of all of them, algbw and busbw count all of them.")
    if any(row.rank_spread is not None for row in shown):
        lines.append("spread: (slowest - fastest rank) / slowest, of the ranks' medians; slowest: that rank.")
    peaks = {row.link_peak_bytes_per_s for row in shown if row.link_peak_bytes_per_s is not None}
    if peaks:
        said = ", ".join(f"{decimal(peak / 1e9)} GB/s" for peak in sorted(peaks))
        above = (
            " Above 100 %: legal where the network reduces (NVLS, SHARP)."
            if any((row.link_fraction or 0) > 1 for row in shown)
            else ""
        )
        lines.append(f"of link: busbw / peak of the link in one direction ({said}).{above}")
    if not means:
        lines.append(
            "nccl-tests prints means of back-to-back calls, averaged over ranks: compare with the median above only"
            " where calls do not scatter."
        )
    return tuple(lines)


def _notes(rows: Sequence[CommRow]) -> tuple[str, ...]:
    """Notes of rows, each said once with the sweeps it belongs to."""
    said: dict[str, dict[str, None]] = {}
    called = sweep_names(rows)
    for row in rows:
        for note in row.notes:
            said.setdefault(note, {})[f"{op_label(row)} on {called(row)}"] = None
    every = len({f"{op_label(row)} on {called(row)}" for row in rows})
    return tuple(note if len(owners) == every else f"{_few(list(owners))}: {note}" for note, owners in said.items())


def _few(names: Sequence[str]) -> str:
    return "; ".join(names) if len(names) <= 3 else f"{'; '.join(names[:3])} and {len(names) - 3} more"

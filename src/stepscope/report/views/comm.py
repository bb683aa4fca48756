"""The table of collectives, with nccl-tests' columns: one line a size, grouped by what a sweep was measured with."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.errors import UsageError
from stepscope.core.units import format_plus_minus, format_size
from stepscope.core.words import counted, listed
from stepscope.records.comm import CommRow
from stepscope.report.table import Column, Format, Table, Value, percent, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._comm import (
    above_notes,
    average_busbw,
    decimal,
    failed,
    gigabytes,
    heading,
    in_groups,
    microseconds,
    of_link,
    size_column,
)
from stepscope.results.comm_facts import interval_share
from stepscope.results.comm_labels import op_label, redop_label, sweep_names, sweeps

MAX_AVERAGES = 4
"""From more sweeps than this on, their averages stand in the overview table only."""


def build(rows: Sequence[CommRow]) -> Table:
    """The table of the collectives among ``rows``; sizes keep their order."""
    mine = [row for row in rows if row.kind == "collective"]
    head = heading(mine)
    ordered = in_groups(mine, head)
    return tabled(
        "comm",
        "Collectives",
        (*head, *_COLUMNS),
        ordered,
        failure=failed,
        footnotes=(*average_lines(ordered), *_footnotes(ordered)),
        notes=_notes(ordered),
    )


def _rooted(op: str) -> bool:
    try:
        return COLLECTIVES.load(op).rooted
    except UsageError:  # rows of a collective that is not installed here
        return False


def _wrong(row: CommRow) -> Value:
    if row.correct is None:
        return Value(text="N/A", raw=None, tone="dim")
    return Value(text="0", raw=True) if row.correct else Value(text=">0", raw=False, tone="bad")


_COLUMNS = (
    size_column("size (B)"),
    Column("count", "count (elements)", lambda row: row.numel, whole, short_title="count", role="identity", drop=6),
    Column("dtype", "type", lambda row: row.dtype, whole, role="identity"),
    Column("reduce_op", "redop", redop_label, whole, role="identity"),
    Column("root", "root", lambda row: row.root if _rooted(row.op) else -1, whole, role="identity"),
    Column("time_ns", "time (us)", lambda row: row.time_ns, microseconds),
    Column("algbw", "algbw (GB/s)", lambda row: row.algbw_bytes_per_s, gigabytes, short_title="algbw", drop=10),
    Column("busbw", "busbw (GB/s)", lambda row: row.busbw_bytes_per_s, gigabytes, short_title="busbw"),
    Column("correct", "#wrong", _wrong, whole),
    Column("interval_fraction", "±95%", interval_share, Format(format_plus_minus), drop=9),
    Column("time_ns_min", "min (us)", lambda row: row.time_ns_min, microseconds, short_title="min", drop=1),
    Column("time_ns_p90", "p90 (us)", lambda row: row.time_ns_p90, microseconds, short_title="p90", drop=2),
    Column("time_ns_p99", "p99 (us)", lambda row: row.time_ns_p99, microseconds, short_title="p99", drop=8),
    Column("time_ns_max", "max (us)", lambda row: row.time_ns_max, microseconds, short_title="max", drop=3),
    Column("rank_spread", "spread", lambda row: row.rank_spread, percent, drop=5),
    Column("slowest_rank", "slowest", lambda row: row.slowest_rank, whole, drop=4),
    Column("link_fraction", "of link", of_link, percent, drop=7),
)


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
        " the same calls, all in microseconds; ±95%: interval of the median, its larger side.",
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
        lines += [f"of link: busbw / peak of the link in one direction ({said}).", *above_notes(shown)]
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
    return tuple(
        note if len(owners) == every else f"{listed(owners, at_most=3, between='; ')}: {note}"
        for note, owners in said.items()
    )


VIEW = View(key="comm", title="Collectives", needs=("comm_rows",), table=build)

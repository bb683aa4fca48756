"""Kernels by time."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import KernelRow, KernelTable
from stepscope.report.kernel_names import short_names
from stepscope.report.table import Column, Table, Value, duration, number, said, tabled, unknown
from stepscope.report.view import View
from stepscope.report.views._trace import gaps, middle, most, over_ranks, over_ranks_note, time_over_ranks

NAME, NAME_OF_RANKS = 43, 35
"""Characters for a name: of one rank, and beside the column that compares ranks."""

NO_KERNELS = "no kernels in this trace: a CPU job, or the profiler did not record the device"


def build(summary: TraceSummary) -> Table:
    """One row a kernel, over all ranks, most time first."""
    tables = [p.kernels for p in summary.ranks if p.kernels is not None and p.kernels.rows]
    ranks = [t.rank for t in tables]
    whole = sum(t.total_ns for t in tables)
    merged = over_ranks((r for t in tables for r in t.rows), lambda r: r.name, lambda r: r.total_ns)
    names = short_names(
        dict.fromkeys(r.name for t in tables for r in t.rows), limit=NAME if len(ranks) == 1 else NAME_OF_RANKS
    )
    tensor = {None: unknown(), True: Value(text="yes", raw=True, tone="good"), False: said("no", raw=False)}

    def work(rows: Sequence[KernelRow]) -> Value:
        return said("comm" if rows[0].work == "communication" else rows[0].work, rows[0].work)

    return tabled(
        "kernels",
        "Kernels",
        (
            Column("kernel", "kernel", lambda r: said(names[r[0].name], r[0].name), role="identity", lead=True),
            Column("work", "class", work),
            Column("tensor_cores", "TC", lambda r: None if r[0].work == "communication" else tensor[r[0].tensor_cores]),
            Column("calls", "calls", lambda rows: middle(rows, "calls"), number),
            Column("total", "total", lambda rows: time_over_ranks(rows, "total_ns", whole), duration),
            Column("median", "median", _weighted_median, duration),
            Column("largest", "longest", lambda rows: max(r.max_ns for r in rows), duration, drop=1),
            Column("largest_rank", "most", lambda rows: most({r.rank: r.total_ns for r in rows}, ranks)),
        ),
        merged,
        footnotes=_footnotes(tables, shortened=any(n != s for n, s in names.items())) if tables else (),
        notes=(
            *gaps(summary, "kernels", lambda p: p.kernels is not None and bool(p.kernels.rows), otherwise=NO_KERNELS),
            *_left_out(tables),
        ),
    )


def _weighted_median(rows: Sequence[KernelRow]) -> float:
    """The ranks' medians, each counting as often as the kernel ran there; one rank's own for one rank."""
    ordered = sorted((r.median_ns, r.calls) for r in rows)
    half, seen = sum(calls for _, calls in ordered) / 2, 0
    for median, calls in ordered:
        seen += calls
        if seen >= half:
            return median
    return ordered[-1][0]


def _footnotes(tables: Sequence[KernelTable], *, shortened: bool) -> tuple[str, ...]:
    lines = ["total: share of the time of all kernels"]
    if any(t.tensor_core_share is not None for t in tables):
        compute = {t.rank: sum(r.total_ns for r in t.rows if r.work == "compute") for t in tables}
        time = sum(compute.values())
        yes, no, open_ = (
            sum((getattr(t, name) or 0.0) * compute[t.rank] for t in tables) / time if time else 0.0
            for name in ("tensor_core_share", "other_share", "unknown_share")
        )
        if yes or no:
            lines.append(
                f"TC: on tensor cores, where the name shows it; of compute time yes {format_percent(yes)}, "
                f"no {format_percent(no)}, unknown {format_percent(open_)}"
            )
    if shortened:
        lines.append("names are shortened; --csv has them in full")
    return (*lines, *over_ranks_note([t.rank for t in tables]))


def _left_out(tables: Sequence[KernelTable]) -> list[str]:
    left = [t for t in tables if t.left_out_names]
    ns, whole = sum(t.left_out_ns for t in left), sum(t.total_ns for t in tables)
    if not left:
        return []
    names = max(t.left_out_names for t in left)
    return [f"{counted(names, 'more kernel')} left out on a rank: {format_percent(ns / whole)} of the time"]


VIEW = View(key="trace_kernels", title="Kernels", needs=("trace",), table=build)

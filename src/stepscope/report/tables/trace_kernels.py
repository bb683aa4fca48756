"""Kernels by time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from stepscope.core.units import format_duration
from stepscope.core.words import counted
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import KernelRow, KernelTable
from stepscope.report.kernel_names import short_names
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.report.tables._trace import duration, gaps, median_over, most, number, over_ranks_note, words

NAME, NAME_OF_RANKS = 43, 35
"""Characters for a name: of one rank, and beside the column that compares ranks."""

NO_KERNELS = "no kernels in this trace: a CPU job, or the profiler did not record the device"


def build(summary: TraceSummary) -> Table:
    """One row a kernel, over all ranks, most time first."""
    tables = [p.kernels for p in summary.ranks if p.kernels is not None and p.kernels.rows]
    ranks = [t.rank for t in tables]
    whole = sum(t.total_ns for t in tables)
    found: dict[str, list[KernelRow]] = defaultdict(list)
    for row in (r for t in tables for r in t.rows):
        found[row.name].append(row)
    merged = sorted(found.values(), key=lambda rows: -sum(r.total_ns for r in rows))
    names = short_names(found, limit=NAME if len(ranks) == 1 else NAME_OF_RANKS)
    rows = tuple(_row(rows, ranks, whole, names[rows[0].name]) for rows in merged)
    return Table(
        key="kernels",
        title="Kernels",
        columns=(
            Column(key="kernel", title="kernel", align="left", role="identity", lead=True),
            Column(key="work", title="class", align="left"),
            Column(key="tensor_cores", title="TC", align="left"),
            Column(key="calls", title="calls"),
            Column(key="total", title="total", unit="ns"),
            Column(key="median", title="median", unit="ns"),
            Column(key="largest", title="longest", unit="ns", drop=1),
            Column(key="largest_rank", title="most", align="left"),
        ),
        rows=rows,
        footnotes=_footnotes(tables, shortened=any(n != s for n, s in names.items())) if tables else (),
        notes=(
            *gaps(
                summary,
                "kernels",
                lambda p: p.kernels is not None and bool(p.kernels.rows),
                otherwise=NO_KERNELS,
            ),
            *_left_out(tables),
        ),
    )


TABLE = TableKind(key="kernels", title="Kernels", needs=("trace",), build=build)


def _row(rows: Sequence[KernelRow], ranks: Sequence[int], whole: int, name: str) -> Row:
    first = rows[0]
    totals = {r.rank: r.total_ns for r in rows}
    middle = median_over(totals)
    tensor = {None: unknown(), True: Value(text="yes", raw=True, tone="good"), False: words("no", raw=False)}
    share = sum(totals.values()) / whole if whole else 0.0
    return Row(
        values=(
            Value(text=name, raw=first.name),
            words("comm" if first.work == "communication" else first.work, raw=first.work),
            unknown() if first.work == "communication" else tensor[first.tensor_cores],
            number(median_over({r.rank: r.calls for r in rows})),
            Value(text=f"{format_duration(middle)} {share:4.0%}", raw=middle),
            duration(_weighted_median(rows)),
            duration(max(r.max_ns for r in rows)),
            most(totals, ranks),
        )
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
                f"TC: on tensor cores, where the name tells; of compute time yes {yes:.0%}, no {no:.0%}, "
                f"not known {open_:.0%}"
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
    return [f"{counted(names, 'more kernel')} left out on a rank: {ns / whole:.1%} of the time"]

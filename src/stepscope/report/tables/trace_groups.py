"""Communication by process group: data, tensor and pipeline parallel traffic apart."""

from __future__ import annotations

from collections import defaultdict
from statistics import median

from stepscope.core.units import format_bytes
from stepscope.records.trace_budget import GroupBudget
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.report.tables._trace import duration, rank_set, words
from stepscope.report.tables.trace_budget import timed


def build(summary: TraceSummary) -> Table:
    """One row per group; median over the ranks that use it."""
    windows = {p.facts.rank: p.budget.parts.window_ns for p in summary.ranks if p.budget is not None}
    by_group: dict[tuple[str, str, int | None], list[GroupBudget]] = defaultdict(list)
    for each in summary.ranks:
        for row in each.groups:
            by_group[row.group, row.description, row.size].append(row)
    rows = [_row(key, mine, windows) for key, mine in by_group.items()]
    return Table(
        key="groups",
        title="Communication by process group",
        columns=(
            Column(key="group", title="group", align="left", role="identity", lead=True),
            Column(key="size", title="ranks in it"),
            Column(key="seen", title="seen", align="left"),
            Column(key="collectives", title="calls"),
            Column(key="bytes", title="bytes", unit="bytes"),
            Column(key="comm", title="comm", unit="ns"),
            Column(key="exposed", title="exposed", unit="ns"),
        ),
        rows=tuple(rows),
        footnotes=("a rank, median over those seen; bytes: payload of all calls; exposed: under no computation",),
        notes=() if rows else ("no collectives in this trace",),
    )


TABLE = TableKind(key="groups", title="Communication by process group", needs=("trace",), build=build)


def _row(key: tuple[str, str, int | None], mine: list[GroupBudget], windows: dict[int, int]) -> Row:
    name, description, size = key
    label = f"{name} {description}".strip() if description != name else name
    sent = [m.size_bytes for m in mine if m.size_bytes is not None]
    comm, exposed = int(median(m.comm_ns for m in mine)), int(median(m.exposed_ns for m in mine))
    window = int(median(windows[m.rank] for m in mine))
    return Row(
        values=(
            Value(text=label or "not recorded", raw=name),
            words(None if size is None else str(size), raw=size),
            Value(text=rank_set(m.rank for m in mine), raw=len(mine)),
            Value(text=f"{median(m.collectives for m in mine):g}", raw=median(m.collectives for m in mine)),
            Value(text=format_bytes(median(sent)), raw=median(sent)) if len(sent) == len(mine) else unknown(),
            duration(comm),
            timed(exposed, window, worry=(0.1, 0.25)),
        )
    )

"""Communication by process group: data, tensor and pipeline parallel traffic apart."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from stepscope.core.words import grouped, ranges
from stepscope.records.trace_budget import GroupBudget
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.table import Column, Format, Table, Value, duration, said, size, tabled, whole
from stepscope.report.view import View
from stepscope.report.views._trace import timed


def build(summary: TraceSummary) -> Table:
    """One row per group; median over the ranks that use it."""
    windows = {p.facts.rank: p.budget.parts.window_ns for p in summary.ranks if p.budget is not None}

    def exposed(mine: Sequence[GroupBudget]) -> Value:
        window = int(median(windows[m.rank] for m in mine))
        return timed(_median_of(mine, "exposed_ns"), window, worry=(0.1, 0.25))

    rows = (row for each in summary.ranks for row in each.groups)
    by_group = grouped(rows, lambda row: (row.group, row.description, row.size))
    return tabled(
        "groups",
        "Communication by process group",
        (
            Column("group", "group", lambda mine: said(_name(mine[0]), mine[0].group), role="identity", lead=True),
            Column("kind", "carries", lambda mine: _carries(mine[0]), role="identity"),
            Column("size", "ranks in it", lambda mine: mine[0].size, whole),
            Column("seen", "seen", lambda mine: said(ranges(m.rank for m in mine), len(mine))),
            Column("collectives", "calls", lambda mine: median(m.collectives for m in mine), Format("{:g}".format)),
            Column("bytes", "bytes", _sent, size),
            Column("comm", "comm", lambda mine: _median_of(mine, "comm_ns"), duration),
            Column("exposed", "exposed", exposed, duration),
        ),
        by_group.values(),
        footnotes=(
            "a rank, median over those seen; bytes: payload of all calls; exposed: under no computation",
            "carries: data, tensor, pipeline, expert or context parallel traffic, by the group's description or operations",
        ),
        notes=() if by_group else ("no collectives in this trace",),
    )


def _median_of(mine: Sequence[GroupBudget], field: str) -> int:
    return int(median(getattr(m, field) for m in mine))


def _name(row: GroupBudget) -> str:
    label = f"{row.group} {row.description}".strip() if row.description != row.group else row.group
    return label or "not recorded"


def _carries(row: GroupBudget) -> Value:
    return said(
        f"{row.kind} (by operations)" if row.kind_source == "operations" else row.kind or "unknown", row.kind or None
    )


def _sent(mine: Sequence[GroupBudget]) -> float | None:
    known = [m.size_bytes for m in mine if m.size_bytes is not None]
    return median(known) if len(known) == len(mine) else None


VIEW = View(key="trace_groups", title="Communication by process group", needs=("trace",), table=build)

"""Communication of one rank by process group: data, tensor, pipeline parallel traffic apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from stepscope.records.trace_budget import GroupBudget
from stepscope.records.trace_collectives import RankCollective
from stepscope.stats import spans
from stepscope.stats.spans import Spans
from stepscope.traces.activity import Activity
from stepscope.traces.groups import kind_by_name, kind_by_operations
from stepscope.traces.phases import FORWARD, pass_at

UNNAMED = ""
"""Stands for collectives whose group was not recorded."""


def group_budgets(
    rank: int, activity: Activity, collectives: Sequence[RankCollective], phases: Mapping[str, Spans]
) -> tuple[GroupBudget, ...]:
    """One row per process group, most exposed first; groups that communicate at the same time count it each."""
    by_group: dict[str, list[RankCollective]] = defaultdict(list)
    for each in collectives:
        by_group[each.group.name if each.group else UNNAMED].append(each)
    rows = []
    for name, mine in by_group.items():
        busy = spans.union(
            np.array([c.start_ns for c in mine], dtype=np.int64),
            np.array([c.end_ns for c in mine], dtype=np.int64),
        )
        group = mine[0].group
        kind, source = kind_by_name(group), "name"
        if not kind:
            launched = np.array([c.start_ns if c.launch_ns is None else c.launch_ns for c in mine], dtype=np.int64)
            forward = pass_at(phases, launched) == FORWARD
            kind, source = kind_by_operations(mine, forward.tolist()), "operations"
        sizes = [c.size_bytes for c in mine]
        rows.append(
            GroupBudget(
                rank=rank,
                group=name,
                description=group.description if group else "",
                size=group.size if group else None,
                collectives=len(mine),
                size_bytes=None if None in sizes else sum(s for s in sizes if s is not None),
                comm_ns=busy.measure,
                exposed_ns=spans.subtract(busy, activity.compute).measure,
                kind=kind,
                kind_source=source if kind else "",
            )
        )
    return tuple(sorted(rows, key=lambda r: -r.exposed_ns))

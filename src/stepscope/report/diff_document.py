"""The JSON document of ``trace --diff --json`` (schema stepscope.trace_diff/1) and its ``--fail-if`` conditions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from stepscope.records.codec import headed, plain
from stepscope.records.trace_summary import DiffRow, TraceDiff
from stepscope.report.conditions import Changed, Condition
from stepscope.results.differences import Conditions
from stepscope.stats.compare import SIGNIFICANT
from stepscope.traces.diff import PARTS, STEP

_ROWS = {"step_ns" if part == STEP else f"{part}_ns": part for part in PARTS}
METRICS = tuple(_ROWS)
"""Parts of a step: median over the steps of each rank."""


def document(diffs: Iterable[TraceDiff], conditions: Conditions | None, *, notes: Iterable[str] = ()) -> dict[str, Any]:
    """Plain dicts and lists; values of differences: before, after. conditions None: one and the same job."""
    return {
        **headed("trace_diff/1"),
        "differences": plain(conditions.differ if conditions else ()),
        "same": plain(conditions.same if conditions else ()),
        "unknown": plain(conditions.unknown if conditions else ()),
        "diffs": [plain(each) for each in diffs],
        "notes": list(notes),
    }


def changes(diffs: Sequence[TraceDiff]) -> tuple[Changed, ...]:
    """What conditions are about, of every rank; a change that its test calls no significant difference is none."""
    return tuple(
        Changed(key=key, what=f"rank {diff.rank_after}", value=row.after_ns, change=_change(row))
        for diff in diffs
        for key, part in _ROWS.items()
        for row in diff.parts
        if row.name == part
    )


def unchecked(conditions: Sequence[Condition], diffs: Sequence[TraceDiff]) -> tuple[Condition, ...]:
    """Changes against nothing: the older trace has no time in that part, on any rank."""
    known = {row.name for diff in diffs for row in diff.parts if row.ratio is not None}
    return tuple(each for each in conditions if each.percent and _ROWS[each.key] not in known)


def _change(row: DiffRow) -> float | None:
    if row.ratio is None or (row.p_value is not None and row.p_value >= SIGNIFICANT):
        return None
    return (row.ratio - 1) * 100

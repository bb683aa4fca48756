"""The JSON document of ``trace --diff --json`` (schema stepscope.trace_diff/1) and its ``--fail-if`` conditions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from stepscope.records.codec import headed, plain
from stepscope.records.trace_diff import DiffRow, TraceDiff
from stepscope.report.compare_document import Failed
from stepscope.report.conditions import Condition, parse_condition
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


def parse_conditions(texts: Iterable[str]) -> tuple[Condition, ...]:
    """``KEY OP NUMBER[%]``; % is the change against the older trace. Raises UsageError."""
    return tuple(parse_condition(text, metrics=METRICS, rules=(), percent=True) for text in texts)


def failed_conditions(conditions: Sequence[Condition], diffs: Sequence[TraceDiff]) -> tuple[Failed, ...]:
    """Where conditions hold, on any rank. A change that its test calls no significant difference holds nothing."""
    return tuple(_failed(conditions, diffs))


def unchecked(conditions: Sequence[Condition], diffs: Sequence[TraceDiff]) -> tuple[Condition, ...]:
    """Changes against nothing: the older trace has no time in that part, on any rank."""
    known = {row.name for diff in diffs for row in diff.parts if row.ratio is not None}
    return tuple(each for each in conditions if each.percent and _ROWS[each.key] not in known)


def _failed(conditions: Sequence[Condition], diffs: Sequence[TraceDiff]) -> Iterator[Failed]:
    for condition in conditions:
        for diff in diffs:
            row = next(row for row in diff.parts if row.name == _ROWS[condition.key])
            value = _value(condition, row)
            if value is not None and condition.holds({condition.key: value}, ()):
                said = f"{value:+.1f}%" if condition.percent else f"{value:.4g}"
                yield Failed(condition=condition.text, what=f"rank {diff.rank_after}, {condition.key}", value=said)


def _value(condition: Condition, row: DiffRow) -> float | None:
    if not condition.percent:
        return row.after_ns
    if row.ratio is None or (row.p_value is not None and row.p_value >= SIGNIFICANT):
        return None
    return (row.ratio - 1) * 100

"""The JSON document of ``compare --json`` (schema stepscope.compare/1) and its ``--fail-if`` conditions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.records.codec import headed, plain
from stepscope.records.comparison import ComparedFigure, Comparison
from stepscope.report.conditions import Condition, parse_condition
from stepscope.results.comparing import METRIC_KEYS


def document(comparison: Comparison) -> dict[str, Any]:
    """Plain dicts and lists; unknown is null. ``change`` is relative to the first side."""
    return {
        **headed("compare/1"),
        "sides": list(comparison.sides),
        "scaling": plain(comparison.scaling),
        "differences": plain(comparison.differences),
        "same": plain(comparison.same),
        "unknown": plain(comparison.unknown),
        "figures": [{**plain(figure), "change": figure.change} for figure in comparison.figures],
        "unmatched": list(comparison.unmatched),
        "notes": list(comparison.notes),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A condition that holds for one figure."""

    condition: str
    what: str
    value: str

    def __str__(self) -> str:
        return f"{self.what}: {self.value}"


def parse_conditions(texts: Iterable[str]) -> tuple[Condition, ...]:
    """``KEY OP NUMBER[%]``; % is the change against the first side. Raises UsageError."""
    return tuple(parse_condition(text, metrics=METRIC_KEYS, rules=(), percent=True) for text in texts)


def failed_conditions(conditions: Sequence[Condition], comparison: Comparison) -> tuple[Failed, ...]:
    """Where conditions hold. A change that its test calls no significant difference holds nothing."""
    return tuple(
        Failed(condition=each.text, what=f"{figure.what}, {figure.metric}", value=_said(each, figure))
        for each in conditions
        for figure in comparison.figures
        if figure.metric == each.key
        and not (each.percent and figure.verdict == "no significant difference")
        and each.holds({each.key: figure.change * 100 if each.percent else figure.second.value}, ())
    )


def unchecked(conditions: Iterable[Condition], comparison: Comparison) -> tuple[Condition, ...]:
    """Conditions on a figure that the comparison does not have: they can never hold."""
    there = {figure.metric for figure in comparison.figures}
    return tuple(each for each in conditions if each.key not in there)


def _said(condition: Condition, figure: ComparedFigure) -> str:
    if condition.percent:
        return f"{figure.change * 100:+.1f}%"
    return f"{figure.second.value:.4g}"

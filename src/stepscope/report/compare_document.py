"""The JSON document of ``compare --json`` (schema stepscope.compare/1) and its ``--fail-if`` conditions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepscope.records.codec import headed, plain
from stepscope.records.comparison import Comparison
from stepscope.report.conditions import Changed, Condition
from stepscope.results.comparing import lacking


def document(comparison: Comparison) -> dict[str, Any]:
    """Plain dicts and lists; unknown is null. ``change`` is relative to the first side."""
    return {
        **headed("compare/1"),
        "sides": list(comparison.sides),
        "scaling": plain(comparison.scaling),
        "differences": plain(comparison.differences),
        "same": plain(comparison.same),
        "unknown": plain(comparison.unknown),
        "figures": [
            {**plain(figure), "change": figure.change, "lacking": lacking(figure)} for figure in comparison.figures
        ],
        "unmatched": list(comparison.unmatched),
        "notes": list(comparison.notes),
    }


UNCHANGED = ("no significant difference", "not clear")
"""Verdicts of a change that may be none."""


def changes(comparison: Comparison) -> tuple[Changed, ...]:
    """What conditions are about; a change that may be none is none."""
    return tuple(
        Changed(
            key=each.metric,
            what=each.what,
            value=each.second.value,
            change=None if each.verdict in UNCHANGED else each.change * 100,
        )
        for each in comparison.figures
    )


def unchecked(conditions: Iterable[Condition], comparison: Comparison) -> tuple[Condition, ...]:
    """Conditions on a figure that the comparison does not have: they can never hold."""
    there = {figure.metric for figure in comparison.figures}
    return tuple(each for each in conditions if each.key not in there)

"""Rules on one phase of the step: which cells spend more of it there than a limit allows."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.core.units import format_percent
from stepscope.diagnose.outcome import Statement
from stepscope.records.finding import Finding, Skipped
from stepscope.results.cell_facts import TimedCell, by_model, timed_cells
from stepscope.results.evidence import Evidence


def over_share(
    evidence: Evidence, phase: str, limit: float, finding: Callable[[Evidence, list[TimedCell]], Finding], *, spent: str
) -> Statement:
    """``finding`` on the cells in which ``phase`` takes more than ``limit`` of the step: one a model, the worst cell first.

    spent: what the step does there (``of the step waits for data``).
    """
    cells = timed_cells(evidence)
    if not cells:
        return Skipped(reason="no finished cell has step times", command="stepscope bench MATRIX.yaml")
    ranked = sorted(cells, key=lambda each: -each.share(phase))
    if found := by_model(each for each in ranked if each.share(phase) > limit):
        return [finding(evidence, group) for group in found]
    return f"{ranked[0].name}: {format_percent(ranked[0].share(phase))} {spent}, limit {format_percent(limit)}"

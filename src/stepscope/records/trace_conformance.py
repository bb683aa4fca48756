"""A trace held against the communication plan that its strategy declared."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformanceCheck:
    """One rank. holds: None when no whole step was recorded; differences: in words, one a line; certain: some of them cannot
    come from the plan in any order, batching or prefetch."""

    rank: int
    strategy: str
    steps: int
    planned_per_step: int
    launched_in_backward: int
    overlap_planned: bool
    holds: bool | None
    differences: tuple[str, ...]
    certain: bool

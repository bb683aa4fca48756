"""Two or more runs side by side: what differs in how they were made, and in what came out."""

from __future__ import annotations

from typing import Literal

from stepscope.core.dataclass import dataclass
from stepscope.records.scaling_budget import ScalingBudget
from stepscope.records.training import Measured

ComparisonVerdict = Literal["better", "worse", "not clear", "no significant difference", "not tested"]
"""``not clear``: of the test and the interval one says that there is a difference, the other does not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Something of how the sides were made. values: in the order of sides; None: not known there."""

    where: Literal["machine", "settings", "software"]
    key: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicates:
    """What the test counts as independent. values: one figure each, in the metric's unit.

    kind: ``round``, ``block of 12 steps``, ``epoch``.
    """

    kind: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedFigure:
    """One figure of one side against the same figure of the first side.

    what: which run or collective. label: what it is without the model, data and size that it is of (``ddp on 2 ranks``), by
    which figures of many are summed up; None: of that alone. metric: a key (``step_ns``, ``samples_per_s``);
    higher_is_better: of that metric. unit: what a throughput counts (``tokens``); None: no throughput.
    ratio = this side's / the first side's; low, high: its 95% interval; None: too few replicates.
    p_value: Mann-Whitney U, two-sided, over replicates; None with ``untested``: why there is no test.
    verdict: of the second against the first; ``not tested`` where there is neither a test nor two intervals.
    """

    what: str
    metric: str
    side: str
    higher_is_better: bool
    first: Measured
    second: Measured
    ratio: float
    low: float | None
    high: float | None
    p_value: float | None
    untested: str | None
    replicate: str | None
    verdict: ComparisonVerdict
    label: str | None = None
    unit: str | None = None

    @property
    def change(self) -> float:
        """Relative change against the first side: -0.03 is 3% less."""
        return self.ratio - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Sides in the order given, the first is what others are compared with. unmatched: what only some sides have.

    scaling: of sides on different numbers of ranks, how well the larger ones use theirs.
    differences, same: what all sides tell of how they were made; unknown: what one of them does not tell.
    """

    sides: tuple[str, ...]
    differences: tuple[Difference, ...]
    figures: tuple[ComparedFigure, ...]
    same: tuple[Difference, ...] = ()
    unknown: tuple[Difference, ...] = ()
    unmatched: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    scaling: tuple[ScalingBudget, ...] = ()

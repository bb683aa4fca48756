"""Runs side by side: what differs in how they were made and in what came out; one job against itself on fewer ranks."""

from __future__ import annotations

from typing import Literal

from stepscope.core.dataclass import record
from stepscope.records.nouns import Measured, Scaling


@record
class ScalingPart:
    """One part of the time. ideal_ns: the baseline's, scaled as the whole would ideally be.

    lost_ns = run_ns - ideal_ns, negative where the part gained; over all parts it sums to the reading's. share: of the whole
    loss; None without a loss, of a part that gained, and of one that lost more than the whole, which others gained back.
    """

    key: str
    base_ns: float
    ideal_ns: float
    run_ns: float
    lost_ns: float
    share: float | None


@record
class ScalingReading:
    """The pair as strong or weak scaling; None: the data of an epoch are the same, whatever the batches are.

    speedup: throughput over the baseline's; low, high: 95% interval. efficiency: speedup / ranks ratio.
    ideal_ns: the run's time at efficiency 1; lost_ns: what it takes above that.
    """

    scaling: Scaling | None
    speedup: float
    low: float | None
    high: float | None
    efficiency: float
    rating: str | None
    ideal_ns: float
    lost_ns: float
    parts: tuple[ScalingPart, ...]


@record
class ScalingBudget:
    """Where the speed-up of ``run`` over ``base`` is lost. Times of one ``unit`` (step | epoch), ns.

    readings: one where ``decided_by`` says why the scaling is strong or weak, else both. basis: what the times are.
    no_interval, no_parts: why the speed-up has no interval, and why the loss has no parts.
    traced: both sides are traced jobs. run_ids: of the run and its baseline, where both are training runs.
    """

    base: str
    run: str
    base_world_size: int
    world_size: int
    unit: str
    basis: str
    base_time: Measured
    time: Measured
    decided_by: str | None
    readings: tuple[ScalingReading, ...]
    no_interval: str | None = None
    no_parts: str | None = None
    traced: bool = False
    run_ids: tuple[str, ...] = ()


ComparisonVerdict = Literal["better", "worse", "not clear", "no significant difference", "not tested"]
"""``not clear`` means that of the test and the interval one says that there is a difference, the other does not."""


@record
class Difference:
    """Something of how the sides were made. values: in the order of sides; None: not known there."""

    where: Literal["machine", "settings", "software"]
    key: str
    values: tuple[str | None, ...]


@record
class Replicates:
    """What the test counts as independent. values: one figure each, in the metric's unit.

    kind: ``round``, ``block of 12 steps``, ``epoch``.
    """

    kind: str
    values: tuple[float, ...]


@record
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


@record
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

"""One job against the same job on fewer ranks: how much faster, and which part of the step took what is missing."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass
from stepscope.records.training import Measured, Scaling


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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

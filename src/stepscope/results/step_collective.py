"""The one collective of a step, timed on the rank that came last: nobody waited for that one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.dataclass import dataclass
from stepscope.records.plan import CommOp
from stepscope.results.slow_ranks import OwnTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCollective:
    """time_ns: median over the steps; p90_ns: 90% quantile of them. busbw: as nccl-tests counts it."""

    op: str
    size_bytes: int
    time_ns: float
    p90_ns: float
    busbw_bytes_per_s: float

    @property
    def tail(self) -> float:
        """p90 / median."""
        return self.p90_ns / self.time_ns


def step_collective(plan: Sequence[CommOp], times: OwnTimes) -> StepCollective | None:
    """Of a step whose ``plan`` is one collective that nothing overlaps; None: it has another plan, or took no time."""
    if len(plan) != 1:
        return None
    op = plan[0]
    net = times.exposed_ns.min(axis=0)
    time_ns = float(np.median(net))
    if time_ns <= 0:
        return None
    factor = COLLECTIVES.load(op.op).bus_factor(times.ranks)
    return StepCollective(
        op=op.op,
        size_bytes=op.size_bytes,
        time_ns=time_ns,
        p90_ns=float(np.quantile(net, 0.9)),
        busbw_bytes_per_s=op.size_bytes / time_ns * 1e9 * factor,
    )

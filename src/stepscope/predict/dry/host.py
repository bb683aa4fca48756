"""What a step takes that a dry run recorded, on ranks of the host: operators of one profiled rank, what lies between them,
and collectives at measured prices. A rank computes on one thread, and gloo's threads send beside it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from stepscope.core.dataclass import record
from stepscope.core.units import format_percent
from stepscope.predict.collectives.costs import Price
from stepscope.predict.dry.clocks import Work, run_clocks
from stepscope.predict.dry.kernels import kind_of
from stepscope.predict.dry.measured import Calibrated, KernelTime, calibrated
from stepscope.predict.dry.step import (
    TimedRank,
    fit_in,
    flop_of,
    kernels_of,
    limit_of,
    parts_of,
    replay,
    same_data,
    traffic_of,
)
from stepscope.predict.dry.traffic import PRICED_AS, members
from stepscope.predict.job import PricedCall
from stepscope.predict.overlap import STARTUP_BYTES, transport_of
from stepscope.predict.prices import Prices
from stepscope.records.dry_run import DryOperator, DryRank, ProfiledOperator
from stepscope.records.prediction import DryStep
from stepscope.records.trace_work import OperatorRow

CPU = "cpu"
FIXED_NS, BYTES_PER_NS, FLOP_PER_NS = 2e3, 8.0, 40.0
"""What an operator of the host takes about: what was measured of its kind says how much."""
COVERED, NEAREST = 0.05, 0.3
"""80% half-width, shares, of the time on other ranks of operators that were measured (12 jobs on 2 and 4 ranks, 2026-11),
and of those that the nearest stands for."""
BASE_BYTES = 400 << 20
"""Of a process with torch in it (resident, torch 2.13)."""


def host_ns(row: DryOperator) -> float:
    """Return what an operator takes about, ns."""
    return FIXED_NS + (row.read_bytes + row.written_bytes) / BYTES_PER_NS + row.flop / FLOP_PER_NS


@record
class MeasuredRank:
    """One rank as it was profiled. kernel_ns: of one call of an operator, by its phase; between_ns: what follows each call
    in a phase: Python, dispatch. beside_ns: parts of the step in which nothing is called. operators: as they
    were measured."""

    operators: Calibrated
    kernel_ns: KernelTime
    between_ns: Mapping[str, float]
    beside_ns: Mapping[str, float]


def measured_rank(rank: DryRank, operators: Iterable[ProfiledOperator], parts: Mapping[str, float]) -> MeasuredRank:
    """Lay a profile beside the dry run of the same ranks. parts: ns of its steps without the profiler, less waiting for
    communication, by key of records/parts.py; operators of phases that are none of them are in ``other``."""
    rows = [
        OperatorRow(
            rank=rank.rank, name=one.name, shapes=one.shapes, calls=one.calls, host_total_ns=one.time_ns,
            host_self_ns=one.time_ns, device_total_ns=0, device_self_ns=0, device_events=0, flop=None,
        )
        for one in operators
    ]  # fmt: skip
    made = calibrated(rank, rows, host_ns)
    spent: defaultdict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    part = {row.phase: row.phase if row.phase in parts else "other" for row in rank.operators}
    for index, count in Counter(rank.order).items():
        row = rank.operators[index]
        spent[part[row.phase]] += count * made.kernel_ns(row)
        calls[part[row.phase]] += count
    rest = {key: parts.get(key, 0.0) - ns for key, ns in spent.items()}
    # With the profiler steps are longer: operators that take more than the part without it are shorter there.
    shorter = {key: parts[key] / spent[key] for key, ns in rest.items() if ns < 0 and parts.get(key)}
    return MeasuredRank(
        operators=made,
        kernel_ns=lambda row: made.kernel_ns(row) * shorter.get(part.get(row.phase, ""), 1.0),
        between_ns={phase: max(0.0, rest[key]) / calls[key] for phase, key in part.items() if key in rest},
        beside_ns={key: ns for key, ns in parts.items() if key not in spent},
    )


@record
class HostPricing:
    """What a dry run is priced by on the host. source: of the operators, in words. memory_bytes: of a host.
    overlap: collectives hide as much as they can."""

    measured: MeasuredRank
    prices: Prices
    source: str
    memory_bytes: int
    overlap: bool = False

    def timed(self, rank: DryRank) -> TimedRank:
        """Time what a rank records. Raises UsageError for a collective without a price."""
        return self._timed(rank, lambda price: price.time_ns)

    def whole(self, rank: DryRank) -> DryStep:
        """Return the step of a rank. Raises UsageError for a collective without a price."""
        timed = self.timed(rank)
        clocks, low, high = timed.clocks, self._timed(rank, _low), self._timed(rank, _high)
        parts = {**parts_of(timed), "idle": 0.0}  # what is computed is all that the one clock counts
        for part, ns in self.measured.beside_ns.items():
            parts[part] = parts.get(part, 0.0) + ns
        step, share = sum(parts.values()), self.measured.operators.share_of(rank)
        doubt = clocks.length_ns * (share * COVERED + (1 - share) * NEAREST)
        flop = flop_of(rank)
        replicas = rank.world_size // same_data(rank)
        return DryStep(
            ranks=rank.world_size,
            rank=rank.rank,
            gpu=CPU,
            network=None,
            step_ns=step,
            low_ns=step - math.hypot(doubt, timed.played.step_ns - low.played.step_ns),
            high_ns=step + math.hypot(doubt, high.played.step_ns - timed.played.step_ns),
            parts=parts,
            kernels=kernels_of(clocks, flop),
            traffic=traffic_of(rank, lambda _: 1, timed.prices),
            comm_ns=timed.played.comm_ns,
            mfu=None,
            hfu=None,
            precision="fp32",
            samples_per_s=None if rank.samples is None else rank.samples * replicas / step * 1e9,
            tokens_per_s=None if rank.tokens is None else rank.tokens * replicas / step * 1e9,
            memory=fit_in(rank, self.memory_bytes, base_bytes=BASE_BYTES, fragmentation=1.0),
            limit=limit_of(parts, clocks),
            rests_on=f"operators of {self.source}, {format_percent(share, digits=0)} of their time measured with their "
            f"shapes; {self.prices.source}",
            notes=self.prices.notes,
        )

    def _timed(self, rank: DryRank, of: Callable[[Price], float]) -> TimedRank:
        # A call is made when the one thread comes to it.
        rank = replace(rank, calls=tuple(replace(call, after=None) for call in rank.calls))
        measured = self.measured
        rows: list[Work] = [
            (measured.kernel_ns(row) + measured.between_ns.get(row.phase, 0.0), 0.0, kind_of(row))
            for row in rank.operators
        ]
        clocks = run_clocks(rank, [rows[index] for index in rank.order])
        prices = []
        for call in rank.calls:
            ranks, op = len(members(rank, call)), PRICED_AS.get(call.op, call.op)
            alone, least = (
                of(self.prices.of(op, size, ranks)) if ranks > 1 else 0.0
                for size in (call.size_bytes, min(STARTUP_BYTES, call.size_bytes))
            )
            prices.append(
                PricedCall(
                    alone_ns=alone, latency_ns=min(alone, least), stream=str(call.group), links="network"
                )
            )  # fmt: skip
        played = replay(rank, clocks, prices, transport_of("gloo"), perfect=self.overlap)
        return TimedRank(clocks=clocks, prices=prices, played=played)


def _low(price: Price) -> float:
    return price.low_ns


def _high(price: Price) -> float:
    return price.high_ns

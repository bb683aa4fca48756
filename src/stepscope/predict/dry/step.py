"""Time, memory and utilisation of the step that a dry run recorded, on a cluster."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable
from math import prod

from stepscope.core.dataclass import record
from stepscope.machine.peaks import Accelerator
from stepscope.predict.dry.clocks import Clocks, Work, gpu_work, run_clocks
from stepscope.predict.dry.kernels import computed_flop, kernel_s, kind_of, model_flop, precision_of, uses_tf32
from stepscope.predict.dry.traffic import job_calls, priced
from stepscope.predict.job import MeasuredJob, PricedCall, Replayed, replayed_at
from stepscope.predict.overlap import Transport
from stepscope.predict.step.calibration import EXTRAPOLATED, StepCalibration, of_dry_runs, reach_at, verdict
from stepscope.predict.step.layout import Cluster
from stepscope.predict.step.roofline import Roofline
from stepscope.records.dry_run import MEMORY_KINDS, DryOperator, DryRank
from stepscope.records.parts import COMPUTATION
from stepscope.records.prediction import DryFit, DryKernels, DryStep, DryTraffic

SAME_DATA = ("tp", "pp", "sp", "tensor", "model", "pipeline")
"""Names of mesh dimensions whose ranks are given the same batch."""


def predict_dry(
    rank: DryRank,
    cluster: Cluster,
    calibration: StepCalibration | None = None,
    *,
    kernel_ns: Callable[[DryOperator], float] | None = None,
    overlap: bool = False,
) -> DryStep:
    """Price the step. kernel_ns: of an operator, where it was measured; None: by roofline. overlap: collectives hide as much
    as they can.

    Raises UsageError where the GPU has no rate for a type in use.
    """
    return Pricing(cluster=cluster, calibration=calibration, kernel_ns=kernel_ns, overlap=overlap).whole(rank)


@record
class TimedRank:
    """Operators and collectives, put together. prices: of the collectives."""

    clocks: Clocks
    prices: list[PricedCall]
    played: Replayed


@record
class Pricing:
    """What a dry run is priced by, as :func:`predict_dry` is given it. calibration: None: what is shipped for the GPU."""

    cluster: Cluster
    calibration: StepCalibration | None = None
    kernel_ns: Callable[[DryOperator], float] | None = None
    overlap: bool = False

    @property
    def constants(self) -> StepCalibration:
        return self.calibration or of_dry_runs(self.cluster.gpu)

    def timed(self, rank: DryRank) -> TimedRank:
        """Time what a rank records, or a piece of it. Raises UsageError where the GPU has no rate for a type in use."""
        c, roofline = self.constants, Roofline(self.cluster.gpu, self.constants)
        work = gpu_work(rank, roofline, self.kernel_ns or self.roofline_ns(rank))
        _add_calls(rank, work, 1e3 * c.host_call_us)
        clocks = run_clocks(rank, work)
        prices = priced(rank, self.cluster, c)
        transport = Transport(lanes=1, compute_slowdown=c.overlap_slowdown)
        return TimedRank(
            clocks=clocks, prices=prices, played=replay(rank, clocks, prices, transport, perfect=self.overlap)
        )

    def roofline_ns(self, rank: DryRank) -> Callable[[DryOperator], float]:
        """Return what an operator of the rank takes, ns."""
        roofline, tf32 = Roofline(self.cluster.gpu, self.constants), uses_tf32(rank)
        return lambda row: 1e9 * kernel_s(row, roofline, tf32=tf32)

    def whole(self, rank: DryRank) -> DryStep:
        """Return the step of a rank that waits for no stage of a pipeline."""
        timed = self.timed(rank)
        return self.step(rank, timed, parts_of(timed))

    def step(self, rank: DryRank, timed: TimedRank, parts: dict[str, float]) -> DryStep:
        """Return the step of these parts."""
        c, cluster, clocks = self.constants, self.cluster, timed.clocks
        parts["other"] = parts.get("other", 0.0) + 1e3 * c.step_us
        parts["other"] += sum(parts.values()) * c.spread_per_doubling * max(0.0, math.log2(cluster.gpus / 8))
        parts = {key: ns * c.factor for key, ns in parts.items()}
        step = sum(parts.values())
        low, high = reach_at(c, cluster.gpus)
        unseen = c.range is not None and cluster.gpu.key not in c.range.accelerators
        wide = EXTRAPOLATED if unseen else 1.0
        flop, calls = flop_of(rank), Counter(rank.order)
        precision = _precision(rank, cluster.gpu)
        peak = Roofline(cluster.gpu, c).specified(precision) * step / 1e9
        replicas = cluster.gpus // same_data(rank)
        return DryStep(
            ranks=cluster.gpus,
            rank=rank.rank,
            gpu=cluster.gpu.key,
            network=cluster.network.key if cluster.network else None,
            step_ns=step,
            low_ns=step / high**wide,
            high_ns=step / low**wide,
            parts=parts,
            kernels=kernels_of(clocks, flop),
            traffic=traffic_of(rank, cluster.domains_of, timed.prices),
            comm_ns=timed.played.comm_ns,
            mfu=sum(model_flop(row) * calls[i] for i, row in enumerate(rank.operators)) / peak,
            hfu=sum(flop.values()) / peak,
            precision=precision,
            samples_per_s=None if rank.samples is None else rank.samples * replicas / step * 1e9,
            tokens_per_s=None if rank.tokens is None else rank.tokens * replicas / step * 1e9,
            memory=fit(rank, cluster, c),
            limit=limit_of(parts, clocks),
            rests_on=c.name,
            notes=(
                *cluster.whole.notes,
                *((f"{cluster.gpu.name}: no published run checks what it reaches",) if unseen else ()),
            ),
        )


def _add_calls(rank: DryRank, work: list[Work], call_ns: float) -> None:
    """Add what the host needs for a collective to the operator that follows it."""
    for at, count in Counter(call.at for call in rank.calls).items():
        if at < len(work):
            took, launch, kind = work[at]
            work[at] = (took, launch + count * call_ns, kind)


def in_order(rank: DryRank, clocks: Clocks) -> list[int]:
    """Return the places of the calls in the order in which they can begin."""
    calls = job_calls(rank, clocks)
    return sorted(range(len(calls)), key=lambda i: calls[i].ready_ns)


def replay(
    rank: DryRank, clocks: Clocks, prices: list[PricedCall], transport: Transport, *, perfect: bool = False
) -> Replayed:
    """Put the step together with its collectives."""
    calls, order = job_calls(rank, clocks), in_order(rank, clocks)
    job = MeasuredJob(
        name="dry run", source="dry run", ranks=rank.world_size, seen_ranks=1, nodes=None,
        backend=rank.backend or "nccl", device=rank.device, gpu=None, step_ns=clocks.length_ns,
        length_ns=clocks.length_ns, compute_ns=sum(clocks.busy_ns.values()), copies_ns=0.0, input_ns=0.0, tail_ns=0.0,
        spread_ns=0.0, spread_from=0, spread_of="ranks", transport=transport, calls=tuple(calls[i] for i in order),
    )  # fmt: skip
    return replayed_at(job, [prices[i] for i in order], perfect=perfect)


def parts_of(timed: TimedRank) -> dict[str, float]:
    """Return the step by parts, ns."""
    clocks, played = timed.clocks, timed.played
    parts: dict[str, float] = defaultdict(float)
    for (phase, _), ns in clocks.busy_ns.items():
        parts[phase if phase in COMPUTATION else "other"] += ns
    parts["idle"] = clocks.length_ns - sum(parts.values())
    parts["communication"] = played.exposed_ns
    return dict(parts)


def flop_of(rank: DryRank) -> dict[tuple[str, str], float]:
    """FLOP that are computed, by phase and kind."""
    total: dict[tuple[str, str], float] = defaultdict(float)
    for index, count in Counter(rank.order).items():
        row = rank.operators[index]
        total[row.phase, kind_of(row)] += computed_flop(row) * count
    return total


def _precision(rank: DryRank, gpu: Accelerator) -> str:
    """Return the type in which most of the products' FLOP are computed."""
    by: dict[str, float] = defaultdict(float)
    for index, count in Counter(rank.order).items():
        row = rank.operators[index]
        if row.flop:
            by[precision_of(row, gpu, tf32=uses_tf32(rank))] += row.flop * count
    return max(by, key=lambda precision: by[precision], default="fp32")


def kernels_of(clocks: Clocks, flop: dict[tuple[str, str], float]) -> tuple[DryKernels, ...]:
    """Return the kernels by phase and kind, longest first."""
    rows = [
        DryKernels(phase=key[0], kind=key[1], launches=clocks.launches[key], time_ns=ns, flop=flop.get(key, 0.0))
        for key, ns in clocks.busy_ns.items()
    ]
    return tuple(sorted(rows, key=lambda row: -row.time_ns))


def traffic_of(
    rank: DryRank, domains_of: Callable[[tuple[int, ...]], int], prices: list[PricedCall]
) -> tuple[DryTraffic, ...]:
    """Return the collectives by operation and group, longest first."""
    sums: dict[tuple[str, int], list[float]] = defaultdict(lambda: [0, 0, 0.0])
    for call, price in zip(rank.calls, prices, strict=True):
        entry = sums[call.op, call.group]
        entry[0] += 1
        entry[1] += call.size_bytes
        entry[2] += price.alone_ns
    rows = []
    for (op, number), (count, size, ns) in sums.items():
        group = rank.groups[number]
        rows.append(
            DryTraffic(
                op=op,
                axis=group.axis,
                ranks=len(group.ranks),
                domains=domains_of(group.ranks),
                calls=int(count),
                size_bytes=int(size),
                time_ns=ns,
            )
        )
    return tuple(sorted(rows, key=lambda row: -row.time_ns))


def same_data(rank: DryRank) -> int:
    """Count the ranks that are given the same batch."""
    return prod(n for axis, n in rank.mesh.items() if axis in SAME_DATA)


def fit(rank: DryRank, cluster: Cluster, c: StepCalibration) -> DryFit:
    """Lay the peak beside what the device has."""
    return fit_in(rank, cluster.gpu.total_bytes, base_bytes=c.base_bytes, fragmentation=c.fragmentation)


def fit_in(rank: DryRank, device_bytes: int, *, base_bytes: float, fragmentation: float) -> DryFit:
    """Lay the peak beside what there is. fragmentation: what is reserved over what moves."""
    by_kind: dict[str, int] = dict(zip(MEMORY_KINDS, rank.memory.peak, strict=True))
    moving = sum(size for kind, size in by_kind.items() if kind not in ("parameters", "optimizer"))
    slack = (fragmentation - 1) * moving
    needs = sum(by_kind.values()) + base_bytes + slack
    return DryFit(
        by_kind=by_kind, base_bytes=base_bytes, slack_bytes=slack, device_bytes=device_bytes,
        place=rank.memory.peak_place,
        verdict=verdict(needs, device_bytes),
    )  # fmt: skip


def limit_of(parts: dict[str, float], clocks: Clocks) -> str:
    """Name the largest of communication, the host, the optimizer and the kinds of kernels."""
    kinds: dict[str, float] = defaultdict(float)
    for (phase, kind), ns in clocks.busy_ns.items():
        kinds["optimizer" if phase == "optimizer" else kind] += ns
    kinds["memory"] += kinds.pop("fused", 0.0) + kinds.pop("copy", 0.0)
    kinds |= {key: parts.get(key, 0.0) for key in ("communication", "idle", "bubble", "other")}
    return max(kinds, key=lambda kind: kinds[kind])

"""What rules on sharded units, buckets and stages share: the same call on all ranks, the cost of a message, a pipeline.

The cost of a message is latency and time a byte, from the job's own transfers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from itertools import combinations
from statistics import median, median_low

from stepscope.core.dataclass import record
from stepscope.core.words import grouped
from stepscope.diagnose.frameworks import in_words_of, used_in
from stepscope.diagnose.rule import Advices, Limit, Lines, Statement, finding, inspect
from stepscope.diagnose.trace_facts import cut_short, read_in_full, steps_ns, unread, window_ns
from stepscope.records.finding import Advice, Finding, Skipped
from stepscope.records.trace_rules import ShardedUnits, UnitCall
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.results.evidence import TraceEvidence

REDUCTIONS = ("all_reduce", "reduce_scatter")
_APART = 2
"""Sizes whose ratio is less do not tell latency from bandwidth."""
_FIRST_BUCKET, _LEAST_BUCKET = 1 << 20, 64 << 10
BUCKET_CAPS = (25 << 20, 10 << 20, 4 << 20, 1 << 20, 256 << 10)
"""Bytes of a gradient bucket, torch's default first."""


@record
class MessageCost:
    """Time of one message: ``latency_ns + size x ns_per_byte``."""

    latency_ns: float
    ns_per_byte: float

    def of(self, size_bytes: float) -> float:
        return self.latency_ns + size_bytes * self.ns_per_byte

    @property
    def useful_bytes(self) -> float:
        """The smallest size worth sending: below it latency takes longer than the transfer."""
        return max(_LEAST_BUCKET, self.latency_ns / self.ns_per_byte) if self.ns_per_byte > 0 else float("inf")

    def least_exposed(self, total_bytes: float, room_ns: float) -> float:
        """Return how long ``total_bytes`` stay exposed in the best buckets, if all but the last may run beside ``room_ns``
        of computation."""
        return min(self._exposed(total_bytes, cap, room_ns) for cap in BUCKET_CAPS)

    def _exposed(self, total: float, cap: int, room_ns: float) -> float:
        sizes = buckets_of(total, cap)
        return max(self.of(sizes[-1]), sum(map(self.of, sizes)) - room_ns)


def buckets_of(total: float, cap: int) -> list[float]:
    """Sizes of the buckets that DDP fills with so many bytes: a first one of at most 1 MiB, then of the cap."""
    first = min(total, _FIRST_BUCKET, cap)
    rest = total - first
    full, last = divmod(rest, cap)
    return [first, *([float(cap)] * int(full)), *([last] if last else [])]


def message_cost(summary: TraceSummary) -> MessageCost | None:
    """The reductions' cost; None where no size is recorded. Of sizes all alike the whole time counts by the byte."""
    return fitted(_bytes_and_ns(summary))


def fitted(transfers: Iterable[tuple[int, int]]) -> MessageCost | None:
    """The cost of messages of (bytes, ns): the median slope between sizes well apart, and the median of what is left."""
    by_size = grouped(((size, ns) for size, ns in transfers if size > 0 and ns > 0), lambda transfer: transfer[0])
    if not by_size:
        return None
    points = sorted((size, float(median(ns for _, ns in alike))) for size, alike in by_size.items())
    pairs = _thinned_points(points)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(pairs, 2) if b[0] >= _APART * a[0]]
    if not slopes:
        largest, longest = points[-1]
        return MessageCost(latency_ns=0.0, ns_per_byte=longest / largest)
    slope = max(0.0, median(slopes))
    small = points[: max(1, len(points) // 2)]
    return MessageCost(latency_ns=max(0.0, median(ns - size * slope for size, ns in small)), ns_per_byte=slope)


def _thinned_points(points: list[tuple[int, float]], most: int = 64) -> list[tuple[int, float]]:
    """Return at most so many of the points, the smallest and the largest among them."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def _bytes_and_ns(summary: TraceSummary) -> list[tuple[int, int]]:
    """Return (bytes, ns) of each reduction, without waiting for late ranks where several ranks were traced."""
    instances = summary.collectives.instances if summary.collectives is not None else ()
    matched = [
        (i.size_bytes, i.transfer_ns)
        for i in instances
        if i.op in REDUCTIONS and i.size_bytes and i.transfer_ns is not None and len(i.ranks) > 1
    ]
    if matched:
        return matched
    calls = [c for p in summary.ranks if p.communication is not None for c in p.communication.collectives]
    return [(c.size_bytes, c.duration_ns) for c in calls if c.op in REDUCTIONS and c.size_bytes]


WORTH = Limit(0.05, unit="share of the step", source="stepscope's choice, 2026-11: a setting is one argument to change")
ROOM = Limit(0.9, unit="of the device's capacity", source="as for near-oom")

Call = list[UnitCall]
"""The same call on all ranks that show it."""


def min_exposed_ns(call: Call) -> int:
    """Return the least exposed time of a call over its ranks: what is left is transfer, not waiting for a late one."""
    return min(c.exposed_ns for c in call)


@record
class Units:
    """The sharded units of a traced job: of the ranks that can be judged, and call by call.

    step_ns: length of the calls' steps together. sizes: gathered bytes of each unit whose name and size are known.
    """

    job: TraceEvidence
    ranks: Sequence[ShardedUnits]
    calls: Sequence[Call]
    step_ns: float
    sizes: dict[str, int]

    def share(self, calls: Iterable[Call], exposed: Callable[[Call], int] = min_exposed_ns) -> float:
        """Share of the steps that these calls expose."""
        return min(1.0, sum(map(exposed, calls)) / self.step_ns)

    @property
    def step_count(self) -> int:
        """Steps that the calls are of."""
        return len({call[0].step for call in self.calls})

    @property
    def on_cpus(self) -> bool:
        return all(rank.source != "device" for rank in self.ranks)

    @property
    def host_share(self) -> float:
        """Share of the steps that the wrapper itself takes on CPUs, the least over ranks."""
        return min(1.0, min(rank.host_ns for rank in self.ranks) / self.step_ns)

    def cost(self) -> MessageCost | None:
        """Cost of a gather or a reduction by these calls, or None where their sizes are unknown."""
        return fitted((call[0].size_bytes or 0, min(c.end_ns - c.start_ns for c in call)) for call in self.calls)

    @property
    def fullest(self) -> tuple[int, int] | None:
        """Bytes reserved at most, and capacity, of the rank with least room; None where none recorded them."""
        pairs = [
            (u.reserved_bytes, u.capacity_bytes)
            for u in self.ranks
            if u.reserved_bytes is not None and u.capacity_bytes
        ]
        return max(pairs, key=lambda pair: pair[0] / pair[1], default=None)

    def finding(
        self,
        calls: Sequence[Call],
        share: float,
        title: str,
        *evidence: Lines,
        cause: str,
        limit: str,
        advice: Iterable[Advices],
        on_host: float = 0.0,
    ) -> Finding:
        """A finding on these calls, shown by the one that exposes most. cause, on_host: as of ``Finding``. limit: what
        the figure does not say."""
        most = max(calls, key=min_exposed_ns)[0]
        one = "; from one rank's trace: waiting for others may be part of it" if len(self.ranks) == 1 else ""
        return finding(
            title,
            *evidence,
            cause=cause,
            stake=share,
            stake_on_host=on_host,
            ranks=(self.ranks[0].rank,),
            at_ns=(most.start_ns, most.end_ns),
            confidence=f"measured{one}; {limit}",
            advice=advice,
        )

    def advice(self, topic: str) -> tuple[Advice, ...]:
        """The option in the words of the job's frameworks, then the table to look at."""
        used = used_in(self.job.summary) | {u.wrapper for u in self.ranks}
        options = in_words_of(topic, used, otherwise=("fsdp2", "fsdp1", "deepspeed"))
        return (*options, inspect("see every unit", "--show units,overlap"))


def on_units(
    not_on_cpus: str | None = None,
) -> Callable[[Callable[[Units], Statement]], Callable[[TraceEvidence], Statement]]:
    """Make a function of units a rule's ``look_at_job``, skipped where a job has no units that can be judged.

    not_on_cpus: why units on CPUs cannot be; None: they can.
    """

    def judging(judge: Callable[[Units], Statement]) -> Callable[[TraceEvidence], Statement]:
        """Return a judge of a traced job from one of its units."""

        @wraps(judge)
        def look(job: TraceEvidence) -> Statement:
            """Judge the units of one traced job; skipped where it has none."""
            ranks = _judged_ranks(job.summary, not_on_cpus)
            if isinstance(ranks, Skipped):
                return ranks
            calls = _matched_calls(ranks)
            whole = steps_ns(job.summary, {call[0].step for call in calls}) or 1.0
            return judge(Units(job=job, ranks=ranks, calls=calls, step_ns=whole, sizes=_bytes_by_unit(calls)))

        return look

    return judging


def _judged_ranks(summary: TraceSummary, not_on_cpus: str | None) -> list[ShardedUnits] | Skipped:
    """Return the ranks whose units can be judged: those on devices, or all where none is."""
    if not read_in_full(summary):
        return unread(summary, "no rank was read in full")
    units = [p.units for p in summary.ranks if p.units is not None]
    if not units:
        return Skipped(reason="no sharded parameters in these traces (or --show left units out)")
    on_device = [u for u in units if u.source == "device"]
    return on_device or (units if not_on_cpus is None else Skipped(reason=not_on_cpus))


def _matched_calls(sharded: Sequence[ShardedUnits]) -> list[Call]:
    """Group calls by step and place; calls of no step are left out where steps are marked."""
    calls = grouped((call for units in sharded for call in units.calls), lambda call: (call.step, call.place))
    marked = any(step is not None for step, _ in calls)
    return [call for (step, _), call in calls.items() if step is not None or not marked]


def _bytes_by_unit(calls: Sequence[Call]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for call, *_ in calls:
        if call.op == "all_gather" and call.unit is not None and call.size_bytes:
            sizes[call.unit] = max(sizes.get(call.unit, 0), call.size_bytes)
    return sizes


# A pipeline as the traces of all its stages show it

SLOW = 1.15
"""Times the median of the other stages, from which on a stage is slower than the noise of devices."""


@record
class TracedPipeline:
    """Ranks of pipelines side by side that hold the same stage are one stage.

    micro_batches: of a step, as the job recorded, else as the messages of the outer stages say (one forward and one
    backward each); None where these do not come in pairs. chunks: stages of the model on one rank.
    """

    stages: Sequence[Sequence[RankPass]]
    micro_batches: int | None
    chunks: int = 1

    @property
    def compute_ns(self) -> list[int]:
        """Computation of each stage, ns: the median of its ranks, the shorter of two: one slow rank is no stage."""
        return [median_low(p.budget.parts.compute_ns if p.budget else 0 for p in stage) for stage in self.stages]

    @property
    def slowest(self) -> int:
        compute = self.compute_ns
        return max(range(len(compute)), key=compute.__getitem__)

    @property
    def ratio(self) -> float:
        """Computation of the slowest stage / the median of the others."""
        compute = self.compute_ns
        return compute[self.slowest] / max(median(c for i, c in enumerate(compute) if i != self.slowest), 1)

    @property
    def bubbles(self) -> list[float]:
        """Share of the window of each stage in which its ranks idle, or wait in a message that nothing covers."""
        return [median(map(_bubble_share, stage)) for stage in self.stages]


def traced_pipeline(summary: TraceSummary) -> TracedPipeline | Skipped:
    """The pipeline of a job whose stages are all traced."""
    from stepscope.traces.grid import chains_of, stages_of  # only traces have one

    ranks = {p.facts.rank: p for p in read_in_full(summary)}
    if not ranks:
        return unread(summary, "no rank was read in full")
    chains = chains_of(summary.ranks, summary.world_size)
    if not chains:
        return Skipped(reason="no pipeline: no group carries messages between stages alone")
    if any(rank not in ranks for chain in chains for rank in chain) or len({len(c) for c in chains}) > 1:
        return Skipped(reason="a pipeline's stages are not all among the traces")
    if cut := cut_short(summary):
        return cut
    stages = [[ranks[rank] for rank in stage] for stage in stages_of(chains)]
    recorded = {p.facts.setup.micro_batches for stage in stages for p in stage if p.facts.setup is not None} - {None}
    chunks = {p.facts.setup.chunks or 1 for stage in stages for p in stage if p.facts.setup is not None}
    if len(recorded) == 1:
        return TracedPipeline(stages=stages, micro_batches=recorded.pop(), chunks=max(chunks, default=1))
    counted = {m for stage in (stages[0], stages[-1]) for p in stage if (m := _micro_batches(p)) is not None}
    return TracedPipeline(stages=stages, micro_batches=min(counted) if len(counted) == 1 else None)


def _micro_batches(rank: RankPass) -> int | None:
    """Return half of the messages a step, of a stage with one neighbour."""
    pipes = {g.group for g in rank.groups if g.kind == "pp"}
    calls = rank.communication.collectives if rank.communication is not None else ()
    of_step = Counter(
        call.step
        for call in calls
        if call.op == "send_recv" and call.step is not None and call.group is not None and call.group.name in pipes
    )
    usual = median(of_step.values()) if of_step else 0
    return int(usual) // 2 if usual >= 2 and usual == int(usual) and not int(usual) % 2 else None


def _bubble_share(rank: RankPass) -> float:
    """Share of the window in which the rank idles, or waits in a message that nothing covers."""
    assert rank.budget is not None
    messages = sum(g.exposed_ns for g in rank.groups if g.kind == "pp")
    return (min(messages, rank.budget.parts.exposed_comm_ns) + rank.budget.parts.idle_ns) / window_ns(rank)

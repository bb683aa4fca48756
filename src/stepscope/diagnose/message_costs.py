"""What a reduction of some size costs in this job: latency and time a byte, from the job's own transfers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from itertools import combinations
from statistics import median

from stepscope.core.dataclass import dataclass
from stepscope.records.trace_summary import TraceSummary

REDUCTIONS = ("all_reduce", "reduce_scatter")
_APART = 2
"""Sizes whose ratio is less do not tell latency from bandwidth."""
_FIRST_BUCKET, _LEAST_BUCKET = 1 << 20, 64 << 10
BUCKET_CAPS = (25 << 20, 10 << 20, 4 << 20, 1 << 20, 256 << 10)
"""Bytes of a gradient bucket, torch's default first."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
        """What stays exposed of ``total_bytes`` in the best buckets, of which all but the last may run beside ``room_ns``
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
    return fitted(_transfers(summary))


def fitted(transfers: Iterable[tuple[int, int]]) -> MessageCost | None:
    """The cost of messages of (bytes, ns): the median slope between sizes well apart, and the median of what is left."""
    by_size: dict[int, list[int]] = defaultdict(list)
    for size, ns in transfers:
        if size > 0 and ns > 0:
            by_size[size].append(ns)
    if not by_size:
        return None
    points = sorted((size, float(median(times))) for size, times in by_size.items())
    pairs = _spread(points)
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in combinations(pairs, 2) if b[0] >= _APART * a[0]]
    if not slopes:
        largest, longest = points[-1]
        return MessageCost(latency_ns=0.0, ns_per_byte=longest / largest)
    slope = max(0.0, median(slopes))
    small = points[: max(1, len(points) // 2)]
    return MessageCost(latency_ns=max(0.0, median(ns - size * slope for size, ns in small)), ns_per_byte=slope)


def _spread(points: list[tuple[int, float]], most: int = 64) -> list[tuple[int, float]]:
    """At most so many of the points, the smallest and the largest among them."""
    if len(points) <= most:
        return points
    return [points[round(i * (len(points) - 1) / (most - 1))] for i in range(most)]


def _transfers(summary: TraceSummary) -> list[tuple[int, int]]:
    """(bytes, ns) of each reduction, without waiting for late ranks where several ranks were traced."""
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

"""A step as the timeline of its backward pass and its buckets foresees it."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass
from stepscope.records.training import Measured


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSpan:
    """One collective of the step; times since the start of the backward pass, in launch order.

    members: parameters whose gradients it carries. ready_ns: the last of them is computed. launch_ns: it is called: all
    launched before it, too. start_ns: a lane is free. exposed_ns: how much of start to end is not under the backward pass.
    lane: 0, 1, ...: which of the collectives that can run at once.
    """

    index: int
    op: str
    dtype: str
    size_bytes: int
    members: tuple[str, ...]
    ready_ns: int
    launch_ns: int
    start_ns: int
    end_ns: int
    exposed_ns: int
    lane: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """One step: ``step_ns`` = before + backward + exposed + after.

    before_ns: data, forward pass, and the earlier micro-steps when accumulating. backward_ns: the last backward pass as it
    runs beside communication; backward_alone_ns: without. exposed_ns: in and after the backward pass, computation waits
    for collectives. after_ns: optimizer and the rest. waits_ns: of before and after, waiting for collectives (gathers of the
    forward pass, broadcasts of the optimizer). comm_ns: time in which at least one collective runs.
    """

    before_ns: int
    backward_ns: int
    backward_alone_ns: int
    exposed_ns: int
    after_ns: int
    comm_ns: int
    buckets: tuple[BucketSpan, ...]
    waits_ns: int = 0

    @property
    def step_ns(self) -> int:
        return self.before_ns + self.backward_ns + self.exposed_ns + self.after_ns

    @property
    def compute_ns(self) -> int:
        """The step as it would be if communication took no time."""
        return self.before_ns + self.backward_alone_ns + self.after_ns - self.waits_ns

    @property
    def comm_bytes(self) -> int:
        return sum(bucket.size_bytes for bucket in self.buckets)

    @property
    def hidden_fraction(self) -> float | None:
        """1 - exposed / communication: the bound for what a run with these buckets can hide; None without any."""
        return 1 - (self.exposed_ns + self.waits_ns) / self.comm_ns if self.comm_ns else None

    @property
    def overlap_efficiency(self) -> float | None:
        """(compute + communication - step) / the smaller of the two; None without communication."""
        smaller = min(self.compute_ns, self.comm_ns)
        return (self.compute_ns + self.comm_ns - self.step_ns) / smaller if smaller else None


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketCandidate:
    """One partition into buckets; bucket_caps_mb: all asked-for sizes (MiB) that realise this very partition."""

    bucket_caps_mb: tuple[float, ...]
    timeline: Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketChoice:
    """Which bucket size a timeline recommends.

    candidates: one for each different partition, by ascending size. best: index of the recommended one. naive: blocking
    all-reduces after backward. default: the strategy without a bucket size of its own. Gains are t / t_best - 1.
    """

    strategy: str
    candidates: tuple[BucketCandidate, ...]
    best: int
    naive: Timeline
    default: Timeline

    @property
    def chosen(self) -> BucketCandidate:
        return self.candidates[self.best]

    @property
    def bucket_cap_mb(self) -> float:
        """The size it names, MiB: the largest of those that realise the best partition."""
        return max(self.chosen.bucket_caps_mb)

    @property
    def gain_over_naive(self) -> float:
        return self.naive.step_ns / self.chosen.timeline.step_ns - 1

    @property
    def gain_over_default(self) -> float:
        return self.default.step_ns / self.chosen.timeline.step_ns - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketAdvice:
    """The bucket size to take, by what was measured where something was.

    way: the candidate's largest size in MiB (``4``), or ``default``. step: ns; measured, else predicted; measured: which.
    error: largest |predicted / measured - 1| over the ways that were run; None: none was. ways: how many of them.
    refuted: the way that the model names was run as well, and is slower: its measured step, ns.
    """

    way: str
    step: Measured
    measured: bool
    error: float | None
    ways: int
    refuted: float | None = None

"""Collectives as traces show them: one rank's view, the same instance on all ranks, gradient buckets, and the comparison
with the plan that the strategy declared. Times in ns.
"""

from __future__ import annotations

from stepscope.core.dataclass import record

IDLE_CAUSES = ("start_up", "sync", "data", "host_late", "launch_latency", "kernel_gap", "dependency", "unknown")
"""Why a device had nothing to do; as in ``trace_budget.IdleCause``."""


@record
class CollectiveGroup:
    """A process group. None = not recorded; ``ranks`` also where the profiler shortened a long list."""

    name: str
    description: str
    size: int | None
    ranks: tuple[int, ...] | None


@record
class HiddenUnder:
    """Computation that ran during a collective, by kernel or operator name."""

    name: str
    hidden_ns: int


@record
class OwnTime:
    """What a rank did after it left its previous collective and before it entered this one.

    ``own_ns`` = compute + memory (copies under no computation) + the idle time by cause, exactly.
    ``from_window_start``: there was no previous collective; the time counts from the start of the rank's window.
    """

    own_ns: int
    compute_ns: int
    memory_ns: int
    host_late_ns: int
    sync_ns: int
    data_ns: int
    launch_latency_ns: int
    kernel_gap_ns: int
    dependency_ns: int
    unknown_ns: int
    from_window_start: bool
    start_up_ns: int = 0

    @property
    def idle_ns(self) -> int:
        return self.own_ns - self.compute_ns - self.memory_ns


@record
class RankCollective:
    """One collective on one rank. ``start_ns``: when its kernel (on CPU its worker) began, not its launch.

    op: all_reduce, all_gather, reduce_scatter, all_to_all, all_to_all_v, broadcast, reduce, gather, scatter,
    barrier, send_recv, or unknown. op_source: arguments | launch | kernel_name.
    size_bytes: S in the nccl-tests sense as this rank sees it; None when elements or dtype were not recorded.
    exposed_ns: the part that no computation of this rank covers; collectives that overlap count it each.
    """

    op: str
    op_source: str
    kernel: str
    dtype: str | None
    size_bytes: int | None
    group: CollectiveGroup | None
    sequence: int | None
    comms_id: int | None
    direction: str | None  # send | recv, for point-to-point
    peers: tuple[int, int] | None  # (source, destination) of a point-to-point message
    start_ns: int
    end_ns: int
    launch_ns: int | None  # when the host called it
    stream: int | None
    step: int | None  # number of the ProfilerStep that launched it
    exposed_ns: int
    hidden_under: tuple[HiddenUnder, ...]
    own: OwnTime
    group_size: int | None = None  # ranks that take part: as recorded, else as the shapes of the buffers imply

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns

    @property
    def called_ns(self) -> int:
        """When the host called it, or its start where that is not recorded."""
        return self.start_ns if self.launch_ns is None else self.launch_ns

    @property
    def queue_ns(self) -> int | None:
        """Time from the host's call to the start of the transfer's kernel or worker span."""
        return None if self.launch_ns is None else self.start_ns - self.launch_ns


@record
class ExactSpans:
    """Times of one rank, on its own clock; traces/waits.py reads and writes them."""

    start_ns: int
    packed: str


@record
class RankCommunication:
    """All collectives of one rank in order of start. source: device | cpu_spans.

    base_time_ns: what the file adds to all its times (baseTimeNanoseconds); None when not recorded.
    exposed: when it communicates and computes nothing: its budget's ``exposed_comm_ns``. begins_ns: its first event of any
    kind; None: it has none.
    """

    rank: int
    host: str | None
    world_size: int | None
    source: str
    base_time_ns: int | None
    window_ns: tuple[int, int] | None  # first start and last end of device work
    collectives: tuple[RankCollective, ...]
    exposed: ExactSpans
    begins_ns: int | None = None


@record
class Member:
    """One rank's part in an instance: ``position`` in that rank's ``collectives``."""

    rank: int
    position: int


@record
class Instance:
    """The same collective on all ranks whose traces show it, members ascending by rank.

    method: sequence | comms_id | peers | order | order_shifted | order_and_time | alone.
    confidence: 0..1 that these belong together; None for an instance seen on one rank only.
    """

    members: tuple[Member, ...]
    method: str
    confidence: float | None


@record
class ClockFit:
    """A rank's clock against the reference rank's, from the ends of collectives that all ranks leave together.

    Clock shown = reference clock + offset_ns + drift * (time - at_ns). status: reference | same_host (shares the
    reference's clock) | agrees | corrected | unknown (why: ``reason``). Only ``corrected`` changes times.
    residual_ns: 1.4826 x median absolute deviation of the ends from the fit; None without a fit.
    """

    rank: int
    status: str
    offset_ns: float
    drift: float  # ns per ns; 1e-6 = 1 ppm
    at_ns: int
    residual_ns: float | None
    collectives: int  # instances that the fit rests on
    reason: str


class Rebased(ClockFit):
    """Corrected for nothing but the base time that its file counts from: no clock error."""

    __slots__ = ()


class Contradicted(ClockFit):
    """Not corrected, since that would make collectives impossible."""

    __slots__ = ()


@record
class ClockAlignment:
    """Every rank's clock, ascending by rank; ``text`` says in a line what was found."""

    reference_rank: int | None
    fits: tuple[ClockFit, ...]
    text: str


@record
class RankWaiting:
    """One rank in an instance, on the aligned clock. waiting_ns: last start - own start; None when not split.

    position: in that rank's ``RankCommunication.collectives``.
    """

    rank: int
    position: int
    start_ns: int
    end_ns: int
    waiting_ns: int | None
    exposed_ns: int


@record
class MatchedCollective:
    """One instance over all its ranks, split into transfer and waiting where that means something.

    transfer_ns: first end - last start, not below 0. skew_ns: last start - first start. waiting_ns: sum over
    ranks. All None unless all ranks leave together and at least two were seen; ``unsplit`` says why.
    complete: every rank of the group was seen; if not, transfer is an upper and waiting a lower bound.
    last_rank: whom the others waited for (the lowest of several); None when all came at once or it is not split.
    busbw, algbw: S over ``bandwidth_basis`` (transfer | duration: longest, waiting included), 1/s x bytes.
    """

    op: str
    size_bytes: int | None
    dtype: str | None
    group: CollectiveGroup | None
    group_size: int | None
    sequence: int | None
    step: int | None
    start_ns: int
    ranks: tuple[RankWaiting, ...]
    complete: bool
    transfer_ns: int | None
    waiting_ns: int | None
    skew_ns: int | None
    end_skew_ns: int | None
    last_rank: int | None
    last_ranks: tuple[int, ...]
    lead_ns: int | None  # last start - second last: what the others would gain at once
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    bandwidth_basis: str | None
    exposed_ns: int  # sum over ranks
    match_method: str
    match_confidence: float | None
    unsplit: str | None


@record
class RankWaitTotal:
    """Over all split instances: how long one rank waited for others, and how often it came last (alone).

    waiting_ns: the sum over instances. Of those that overlap, and those of other groups, one often transfers while another
    one waits: ``alone_ns`` is how long it waits and nothing transfers, ``alone`` when; of it it computes nothing for
    ``exposed_ns``, by call in ``exposed_by_call``. ahead_by_call: what it transfers exposed in a call beyond the rank that
    came last in it, which still computes then. Both by position in its ``RankCommunication.collectives``.
    """

    rank: int
    waiting_ns: int
    times_last: int
    instances: int
    alone: ExactSpans
    alone_ns: int
    exposed_ns: int
    exposed_by_call: tuple[int, ...]
    ahead_by_call: tuple[int, ...]

    @property
    def ahead_ns(self) -> int:
        """Sum of ``ahead_by_call`` over all calls; those that overlap count each."""
        return sum(self.ahead_by_call)


@record
class JobCollectives:
    """The collectives of a job: every instance in order of time, the clocks, and totals by rank."""

    instances: tuple[MatchedCollective, ...]
    clocks: ClockAlignment
    totals: tuple[RankWaitTotal, ...]
    notes: tuple[str, ...]


@record
class BucketRow:
    """One all-reduce that a gradient hook launched on one rank.

    index: order of launch within the step (in the trace, where steps are not marked). wrapper: ddp where the trace shows
    DistributedDataParallel, else hooks.
    members: shapes of the gradients (as text) in the order of the bucket, None where the trace does not tell;
    members_source: copies (DDP's own copies out of the bucket) | accumulated (the gradients that became ready since the
    bucket before, when their sizes add up). ready_ns: the bucket's last gradient was computed (on a device trace: the
    last device work launched before the bucket was done); launch_ns: the host called the collective; start_ns, end_ns:
    it ran. waited_ns: from the later of ready and launch to the start. exposed_ns: not under any computation.
    """

    rank: int
    step: int | None
    index: int
    wrapper: str
    op: str
    dtype: str | None
    size_bytes: int | None
    members: tuple[str, ...] | None
    members_source: str | None
    members_unavailable: str | None
    ready_ns: int | None
    launch_ns: int
    start_ns: int
    end_ns: int
    waited_ns: int
    exposed_ns: int


@record
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

"""A measured step: without communication, as computation with collectives, and on other ranks as predicted. Times in ns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.records.nouns import Measured, Scaling


@record
class ReadyGradient:
    """One parameter's gradient: ready this long after the backward pass began."""

    name: str
    ready_ns: int


@record
class BackwardProfile:
    """One rank's step with its reductions left out, medians over ``steps`` steps; all ranks ran it at the same time.

    data_wait_ns, forward_ns: of all micro-steps together. earlier_backward_ns: backward passes of the micro-steps before
    the last one, 0 without accumulation. backward_ns: the last micro-step's, the one that may overlap with communication.
    ready: in order of readiness, times since the start of that backward pass, none later than ``backward_ns``.
    unused: parameters that got no gradient. clock: as in a samples file.
    """

    clock: Literal["perf_counter", "cuda_event"]
    steps: int
    micro_batch: int
    data_wait_ns: int
    forward_ns: int
    earlier_backward_ns: int
    backward_ns: int
    optimizer_ns: int
    other_ns: int
    ready: tuple[ReadyGradient, ...]
    unused: tuple[str, ...] = ()

    @property
    def before_ns(self) -> int:
        """From the start of the step to the start of its last backward pass."""
        return self.data_wait_ns + self.forward_ns + self.earlier_backward_ns

    @property
    def after_ns(self) -> int:
        """From the moment all gradients are usable to the end of the step."""
        return self.optimizer_ns + self.other_ns

    @property
    def step_ns(self) -> int:
        """The whole step as it would be if communication took no time."""
        return self.before_ns + self.backward_ns + self.after_ns


@record
class ScaledStep:
    """The job on ``ranks`` ranks. low_ns, high_ns: 80% interval of the step.

    step_ns = compute_ns + copies_ns + input_ns + idle_ns + straggling_ns + exposed_ns + unexplained_ns: slowest of so many
    ranks beyond that of the measured job; computation waits for collectives; what the replay of the measured step lacks.
    throughput: over the measured job's. efficiency: throughput / ``base_throughput`` / ratio of ranks; None on fewer ranks
    than the base's. dominant: largest of these parts.
    comm_ns: collectives one after the other.
    """

    ranks: int
    step_ns: float
    low_ns: float
    high_ns: float
    throughput: float
    throughput_low: float
    throughput_high: float
    efficiency: float | None
    samples_per_s: float | None
    compute_ns: float
    copies_ns: float
    input_ns: float
    idle_ns: float
    straggling_ns: float
    exposed_ns: float
    unexplained_ns: float
    comm_ns: float
    dominant: str


@record
class MeasuredPoint:
    """The same job where it was measured."""

    ranks: int
    step_ns: float


@record
class ScalePrediction:
    """Would it scale? name: the job; ranks: those it was measured on; change: what is other, in words, empty for nothing.

    replay_ns: the measured step put together again from its parts and prices; step_ns: the measured one.
    replay_checks: whether that says anything: False where prices were fitted to it. prices: where they come from.
    base_throughput: of the job with the change on ``ranks`` ranks, over the measured job's: what efficiencies refer to.
    knee: most ranks up to which efficiency stays at ``KNEE`` or above, of those looked at; None: not even the fewest.
    knee_open: whether it is the most that were looked at. assumptions: what the answer rests on; notes: what was not read
    or is doubtful.
    """

    name: str
    source: str
    device: str
    ranks: int
    scaling: Scaling
    change: str
    step_ns: float
    replay_ns: float
    replay_checks: bool
    prices: str
    steps: tuple[ScaledStep, ...]
    measured: tuple[MeasuredPoint, ...]
    base_throughput: float
    knee: int | None
    knee_open: bool
    assumptions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit that is counted: GPU | rank."""
        return "rank" if self.device == "CPU" else "GPU"

    def measured_throughput(self, point: MeasuredPoint) -> float:
        """Return the throughput of ``point`` over the measured job's: with weak scaling more ranks have more work."""
        work = point.ranks / self.ranks if self.scaling == "weak" else 1.0
        return work * self.step_ns / point.step_ns

    def measured_samples_per_s(self, global_batch: int) -> float:
        """Return the samples a second of the measured job. global_batch: its samples of a step."""
        return global_batch / self.step_ns * 1e9

    @property
    def replay_error(self) -> float:
        """Relative error of the replay: replay / measured - 1."""
        return self.replay_ns / self.step_ns - 1


@record
class StepCall:
    """One collective of one rank's step. position: in that rank's ``RankCommunication.collectives``.

    ready_ns, needed_ns: *progress*, the time of the step that is not spent waiting for collectives: what it carries is
    computed; computation goes no further without it. duration_ns: as this rank saw it, waiting for others included.
    """

    position: int
    ready_ns: int
    needed_ns: int
    duration_ns: int


@record
class RankStep:
    """One step of one rank. window_ns = length_ns (progress at its end) + time spent waiting for collectives.

    compute_ns, copies_ns: of the length, under computation and under copies alone; the rest is idle. lanes: how many
    collectives ran at once. calls: in order of their launches.
    """

    rank: int
    step: int
    window_ns: int
    length_ns: int
    compute_ns: int
    copies_ns: int
    lanes: int
    calls: tuple[StepCall, ...]


@record
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


@record
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


@record
class BucketCandidate:
    """One partition into buckets; bucket_caps_mb: all asked-for sizes (MiB) that realise this very partition."""

    bucket_caps_mb: tuple[float, ...]
    timeline: Timeline


@record
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
        """The size that it names, MiB: the largest of those that realise the best partition."""
        return max(self.chosen.bucket_caps_mb)

    @property
    def gain_over_naive(self) -> float:
        return self.naive.step_ns / self.chosen.timeline.step_ns - 1

    @property
    def gain_over_default(self) -> float:
        return self.default.step_ns / self.chosen.timeline.step_ns - 1


@record
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


@record
class DryKernels:
    """Kernels of one kind in one phase of a dry run's step. kind: ``product``, ``attention``, ``memory``, ``copy``,
    ``fused``, ``optimizer``. time_ns: of the device."""

    phase: str
    kind: str
    launches: int
    time_ns: float
    flop: float


@record
class DryTraffic:
    """Collectives of one kind in one group. ranks: of the group; domains: nodes, or NVLink racks, that it spans."""

    op: str
    axis: str | None
    ranks: int
    domains: int
    calls: int
    size_bytes: int
    time_ns: float


@record
class DryFit:
    """A rank's peak against its device, bytes. by_kind: of records/dry_run.py; base: context, libraries, buffers of
    communicators; slack: what the allocator cannot use. device: what the driver reports. verdict: tight: it takes some of
    the reserve that is kept for the prediction's own error."""

    by_kind: Mapping[str, int]
    base_bytes: float
    slack_bytes: float
    device_bytes: int
    verdict: Literal["fits", "tight", "too large"]
    place: str | None = None

    @property
    def needs_bytes(self) -> float:
        return sum(self.by_kind.values()) + self.base_bytes + self.slack_bytes


@record
class DryStep:
    """What a step takes that a dry run recorded, on ``ranks`` GPUs. low_ns, high_ns: 80% interval.

    parts: by key of records/parts.py (``communication``: exposed; ``idle``: the device waits for the host;
    ``bubble``: for other stages of a pipeline, and their messages); they sum to
    step_ns. comm_ns: collectives one after the other. mfu: model FLOP over the peak; hfu: all that are computed;
    None: the host computes (gpu: ``cpu``). limit: the largest part, or kind of kernel. rests_on: what the time comes
    from, in words.
    """

    ranks: int
    rank: int
    gpu: str
    network: str | None
    step_ns: float
    low_ns: float
    high_ns: float
    parts: Mapping[str, float]
    kernels: tuple[DryKernels, ...]
    traffic: tuple[DryTraffic, ...]
    comm_ns: float
    mfu: float | None
    hfu: float | None
    precision: str
    samples_per_s: float | None
    tokens_per_s: float | None
    memory: DryFit
    limit: str
    rests_on: str
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit that is counted: GPU | rank (of the host)."""
        return "GPU" if self.mfu is not None else "rank"

    @property
    def exposed_ns(self) -> float:
        return self.parts["communication"]

    @property
    def host_share(self) -> float:
        """Share of the step in which the device waits for the host."""
        return self.parts["idle"] / self.step_ns

    @property
    def tokens_per_s_per_gpu(self) -> float | None:
        return None if self.tokens_per_s is None else self.tokens_per_s / self.ranks


@record
class DrySpan:
    """What one lane of a step does for a while, ns. of: a phase, key of records/parts.py; of a collective its operation,
    axis the dimension of its group. waiting: the device does nothing until a collective has ended."""

    of: str
    start_ns: float
    end_ns: float
    axis: str | None = None
    size_bytes: int = 0
    waiting: bool = False


@record
class DryLanes:
    """The step of one rank over time: kernels by phase, collectives. at_ns: when each of the memory's samples is."""

    computing: tuple[DrySpan, ...]
    communicating: tuple[DrySpan, ...]
    at_ns: tuple[float, ...]
    peak_ns: float
    step_ns: float

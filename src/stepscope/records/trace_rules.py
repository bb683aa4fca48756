"""Facts that rules ask a trace for: kinds of kernels, what made the host late, gradient syncs, pipeline stages, and sharded
training (FSDP, ZeRO) unit by unit. Times in ns.
"""

from __future__ import annotations

from stepscope.core.dataclass import record


@record
class KernelKind:
    """The compute kernels of one kind; ``traces.kernel_names`` names them. largest: the name with most time."""

    kind: str
    calls: int
    total_ns: int
    largest: str
    largest_ns: int


@record
class KernelMix:
    """The compute kernels of one rank by kind, most time first. Kernels at one time on two streams both count.

    short_calls, short_ns: kernels of at most ``short_limit_ns``.
    """

    rank: int
    kinds: tuple[KernelKind, ...]
    calls: int
    total_ns: int
    short_limit_ns: int
    short_calls: int
    short_ns: int


@record
class HostLateness:
    """What the host was in while the device waited for a launch that it had not made: parts of ``late_ns``.

    operator_ns: an operator or a call of the runtime, on any thread. python_ns: in neither. profiler_ns: the part of it that
    the profiler itself may have taken, so that Python took ``python_ns`` less up to that much.

    dispatch_ns: of CPU ranks, no part of ``late_ns``: time inside operators that is the host's calling, not computation:
    operators that last no longer than their call costs (``dispatch_calls`` of them), and Python's own dispatch (DTensor's).
    """

    rank: int
    late_ns: int
    operator_ns: int
    python_ns: int
    profiler_ns: int = 0
    dispatch_ns: int = 0
    dispatch_calls: int = 0


@record
class JobSigns:
    """What the names of a rank's events say of its job. serves: an inference engine runs it. updates: a backward pass or an
    optimizer is in it. loader_workers: whether worker processes make its batches; None where no loader is marked. replayed:
    share of the device's events that replays of graphs launched. torch: PyTorch runs it, not any program under nsys.
    """

    rank: int
    serves: bool
    updates: bool
    loader_workers: bool | None
    replayed: float
    torch: bool = True


@record
class DriverMemory:
    """What a rank's host asks its driver for memory. calls: name and number, most first; given_back: how many of them give
    it back. kernels: beside them.
    """

    rank: int
    calls: tuple[tuple[str, int], ...]
    given_back: int
    kernels: int


@record
class SyncPlace:
    """Reductions of one rank launched in one part of the step. Those that run at one time count each.

    positions: in the rank's ``RankCommunication.collectives``.
    """

    positions: tuple[int, ...]
    total_ns: int
    exposed_ns: int

    @property
    def calls(self) -> int:
        return len(self.positions)


@record
class GradientSync:
    """Where the reductions (all_reduce, reduce_scatter) of the marked steps were launched, against the autograd engine.

    before its first work in the step, after its last, or between the two (``inside``). steps: with a backward pass.
    """

    rank: int
    steps: int
    before: SyncPlace
    inside: SyncPlace
    after: SyncPlace


@record
class StepPasses:
    """The backward passes of one marked step of a rank.

    reductions, reduced_bytes: calls of all_reduce and reduce_scatter that each pass launched, in order, up to the next
    forward pass, optimizer or step, and their payload (None where not recorded); those of tensor, context and expert
    parallel groups do not count. A micro-step under ``no_sync`` has none.
    """

    step: int
    backward_passes: int
    optimizer_steps: int
    reductions: tuple[int, ...]
    reduced_bytes: tuple[int | None, ...]


@record
class BackwardPasses:
    """How often a rank ran backward and reduced gradients for each step of its optimizers, over its marked steps."""

    rank: int
    steps: tuple[StepPasses, ...]

    @property
    def per_optimizer_step(self) -> float | None:
        """Backward passes / optimizer steps; None where no optimizer's step is marked."""
        optimized = sum(s.optimizer_steps for s in self.steps)
        return sum(s.backward_passes for s in self.steps) / optimized if optimized else None


@record
class StageStep:
    """One step of a rank that sends and receives. message_wait_ns: in messages and computing nothing; receive_wait_ns: the
    part of it in which a receive runs. chunks: micro-batches that it ran forward, as marked, else its backward passes.
    """

    step: int
    window_ns: int
    compute_ns: int
    message_wait_ns: int
    receive_wait_ns: int
    chunks: int | None


@record
class StageWaits:
    """A rank's waiting for other pipeline stages, by marked step. group_size: ranks of its messages' group, where known."""

    rank: int
    group_size: int | None
    steps: tuple[StageStep, ...]


@record
class StageShare:
    """One stage over the common steps: median share of the step that it waits in messages, and median time it computes."""

    rank: int
    bubble: float
    compute_ns: float


@record
class MeasuredBubble:
    """The pipeline bubble as the stages' traces show it, ranks ascending, beside what equal stages would have.

    bubble: mean over the stages. ideal: (p - 1) / (m + p - 1) of ``stages`` p and ``micro_batches`` m; None where one is not
    known. limiting_rank: the stage that computes longest. slowest_over_mean: its computation over the mean of all stages.
    """

    stages: int | None
    micro_batches: int | None
    ideal: float | None
    bubble: float
    shares: tuple[StageShare, ...]
    limiting_rank: int
    slowest_over_mean: float
    steps: int


EARLY_SHARE = 0.05
"""A gather was prefetched when the computation before it covers at least this share of it: less is a copy kernel's tail."""

ROOT = "(root)"
"""The unit of whatever no inner unit holds, as FSDP2 leaves it without a name."""


@record
class UnitCall:
    """One collective of a unit. unit: its name, or ``unit N`` by its place in the forward pass; None where unknown.

    op: all_gather | reduce_scatter | all_reduce (replicas of HSDP). phase: forward | backward. size_bytes: whole, gathered.
    early: an all-gather that ran while the computation before it still did, or queued behind communication that did; None
    for the first of its pass, without computation to run beside, and on CPUs.
    room_ns: computation since the gather before it in this pass.
    """

    step: int | None
    place: int  # among all calls of the step
    unit: str | None
    op: str
    phase: str
    size_bytes: int | None
    start_ns: int
    end_ns: int
    exposed_ns: int
    early: bool | None = None
    room_ns: int = 0


@record
class UnitCopies:
    """Copies of one kind that sharding makes around its collectives. longest_ns: start and end of the longest."""

    kind: str
    calls: int
    busy_ns: int
    exposed_ns: int
    longest_ns: tuple[int, int]


@record
class ShardedUnits:
    """A rank's units. wrapper: fsdp1 | fsdp2 | deepspeed | unknown. named_by: annotation | order.

    source: device | cpu_spans. reserved_bytes: most that the allocator held; capacity_bytes: the device's memory. Both
    None where the trace does not say. host_ns: on CPUs, what the wrapper's own ranges take beside communication, which is
    part of the step there.
    """

    rank: int
    wrapper: str
    named_by: str
    source: str
    calls: tuple[UnitCall, ...]
    reserved_bytes: int | None
    capacity_bytes: int | None
    copies: tuple[UnitCopies, ...] = ()
    host_ns: int = 0


@record
class LayerCall:
    """One collective of a tensor-parallel group.

    layer: ``blocks.3``, ``head`` or the like as the job's plan says; without a plan ``call N`` by its place in the forward
    pass, None where that is unclear. phase: forward | backward.
    """

    step: int | None
    layer: str | None
    op: str
    phase: str
    size_bytes: int | None
    start_ns: int
    end_ns: int
    exposed_ns: int


@record
class DividedLayers:
    """A rank's tensor parallelism. named_by: plan | order. source: device | cpu_spans."""

    rank: int
    named_by: str
    source: str
    group_size: int | None
    calls: tuple[LayerCall, ...]

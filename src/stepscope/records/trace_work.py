"""What ran on one rank: operators, kernels, launches, copies, annotations, sequences, modules; and the memory timeline."""

from __future__ import annotations

from stepscope.core.dataclass import record


@record
class OperatorRow:
    """All calls of one operator (of one input shape, when grouped so).

    host_total_ns: from call to return, a call inside a call of the same name counted once. host_self_ns: without the
    operators inside; what the launching calls of the driver take belongs to it. device_self_ns: durations of the
    device work that this operator launched itself; device_total_ns: with what the operators inside launched. Work
    of several streams at one time counts for each. flop: of all calls; None where it is not known for every call.
    """

    rank: int
    name: str
    shapes: str | None  # as recorded, when grouped by shape
    calls: int
    host_total_ns: int
    host_self_ns: int
    device_total_ns: int
    device_self_ns: int
    device_events: int  # launched by the operator itself
    flop: int | None


@record
class OperatorTable:
    """The operators of one rank. Self times of the rows and of those left out sum to the totals.

    host_ns: time of all threads inside operators. device_ns: durations of all device events, of which
    ``unlinked_ns`` have no launch in the file and ``outside_ns`` were launched outside any operator.
    """

    rank: int
    rows: tuple[OperatorRow, ...]
    host_ns: int
    device_ns: int
    outside_ns: int
    unlinked_ns: int
    left_out_rows: int
    left_out_host_self_ns: int
    left_out_device_self_ns: int
    flop_source: str | None  # recorded | shapes
    flop_unavailable: str | None


@record
class KernelRow:
    """All runs of one kernel. share: of the duration of all kernels of the rank.

    tensor_cores: whether it multiplies on the matrix units, where the name tells; None where it does not.
    """

    rank: int
    name: str
    work: str  # compute | communication
    tensor_cores: bool | None
    calls: int
    total_ns: int
    min_ns: int
    max_ns: int
    mean_ns: float
    median_ns: float
    share: float


@record
class KernelTable:
    """The kernels of one rank by total time. ``left_out`` are names beyond the limit, with their calls and time.

    tensor_core_share, other_share, unknown_share: of the time of compute kernels by what their names tell; None
    without compute kernels.
    """

    rank: int
    rows: tuple[KernelRow, ...]
    total_ns: int
    left_out_names: int
    left_out_calls: int
    left_out_ns: int
    tensor_core_share: float | None
    other_share: float | None
    unknown_share: float | None


@record
class DelaySummary:
    """Figures of one series of durations in ns."""

    count: int
    min_ns: int
    median_ns: float
    mean_ns: float
    p90_ns: float
    p99_ns: float
    max_ns: int


@record
class QueueLength:
    """Work launched and not yet started, over the window from the first launch to the last start.

    times_ns, longest: the window in equal slices, the greatest length in each. empty_share: of the window's time.
    """

    mean: float
    longest: int
    empty_share: float
    times_ns: tuple[int, ...]
    longest_by_slice: tuple[int, ...]


@record
class LaunchStatistics:
    """How the host kept the device supplied.

    delay: from the start of the launching call to the start of the work. call: how long launching calls take.
    short: work that is over sooner than its launching call took. late: work whose launch began only when its stream
    had finished everything before; share of all launched work that has a predecessor on its stream.
    unlinked: device events without a launch in the file; early: events that start before their launch (clocks).
    """

    rank: int
    launched: int
    unlinked: int
    early: int
    delay: DelaySummary | None
    call: DelaySummary | None
    short_count: int
    short_ns: int
    short_call_ns: int
    late_count: int
    late_share: float | None
    launches_per_s: float | None
    queue: QueueLength | None
    unavailable: str | None


@record
class CopyRow:
    """All copies (or memsets) of one kind. Rates are of the copies whose size is known: their bytes / their time.

    memory: pinned or pageable host memory, None where the trace does not say or no host memory takes part.
    exposed_ns: time of this kind while neither a compute nor a communication kernel ran. Kinds can overlap.
    """

    rank: int
    kind: str  # HtoD | DtoH | DtoD | PtoP | HtoH | memset | other
    memory: str | None
    calls: int
    total_ns: int
    busy_ns: int  # overlapping copies once
    exposed_ns: int
    sized_calls: int
    size_bytes: int | None
    bytes_per_s: float | None
    largest_bytes: int | None
    median_bytes: float | None


@record
class CopyTable:
    """The copies of one rank by time; ``exposed_ns`` of all kinds together."""

    rank: int
    rows: tuple[CopyRow, ...]
    busy_ns: int
    exposed_ns: int


@record
class AnnotationRow:
    """All uses of one user annotation; numbered ``ProfilerStep#N`` are one.

    host_ns: uses inside a use of the same name counted once. device_ns: durations of the device work launched inside
    it, by its own thread or by the autograd engine while that thread waits for it. device_span_ns: from the first to the
    last of that work, as the profiler's own gpu_user_annotation says; None where it wrote none.
    """

    rank: int
    name: str
    calls: int
    host_ns: int
    device_ns: int
    device_busy_ns: int
    device_events: int
    device_span_ns: int | None


@record
class SequenceRow:
    """Kernels that run one after the other on a stream, again and again.

    count: occurrences that do not overlap. total_ns: of their kernels; gap_ns: between them, where a fused kernel would
    have none.
    """

    rank: int
    kernels: tuple[str, ...]
    count: int
    total_ns: int
    gap_ns: int
    mean_ns: float
    share: float  # of the duration of all kernels


@record
class ModuleRow:
    """One module of one rank, over the capture, without the modules inside it.

    forward_ns, backward_ns: computation that its calls launched, and that autograd ran for them. comm_ns: collectives that
    either launched; None on CPU traces. kept_bytes: allocated less released while it ran forward, most of it activations;
    None without memory events.
    """

    rank: int
    module: str
    calls: int
    forward_ns: int
    backward_ns: int
    comm_ns: int | None
    kept_bytes: int | None


@record
class MemoryPeak:
    """The most that was allocated at one time, and what the host was doing then.

    annotations: open at that time, outermost first. step: the ProfilerStep's number. operator: the innermost one that
    was open, on the thread that had begun it last.
    """

    time_ns: int
    allocated_bytes: int
    reserved_bytes: int | None
    step: int | None
    phase: str | None
    annotations: tuple[str, ...]
    operator: str | None


@record
class StepMemory:
    """The most allocated during one step, and what was left at its end."""

    step: int
    peak_bytes: int
    end_bytes: int


@record
class PhaseMemory:
    """The most allocated while the host was in one phase, whatever allocated it, and how much of it the phase added.

    added_bytes: the most that it grew within one of the phase's spans, above what was there when the span began.
    """

    phase: str
    peak_bytes: int
    added_bytes: int


@record
class DeviceMemory:
    """Allocations on one device over time.

    times_ns with allocated and reserved: the highest values in each slice of time, at most a few hundred. On the CPU the
    profiler counts from the start of the capture (``from_capture_start``) and reserves nothing; on a GPU the counts
    are the caching allocator's.
    allocations, releases: events. requested_bytes: sum of all allocations, the traffic of the allocator.
    slack_bytes: reserved and not allocated at the peak. growth_bytes: allocated at the end beyond the first event.
    """

    rank: int
    device_type: str  # cpu | gpu | other
    device: int | None
    from_capture_start: bool
    peak: MemoryPeak
    peak_reserved_bytes: int | None
    slack_bytes: int | None
    allocations: int
    releases: int
    requested_bytes: int
    growth_bytes: int
    times_ns: tuple[int, ...]
    allocated_bytes: tuple[int, ...]
    reserved_bytes: tuple[int, ...] | None
    steps: tuple[StepMemory, ...]
    phases: tuple[PhaseMemory, ...] = ()

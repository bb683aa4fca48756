"""Where the time of one rank went: window, steps, phases, process groups, idle by cause; how much of the device's peak it
used; and its spans as a timeline draws them. All in nanoseconds.
"""

from __future__ import annotations

from typing import Literal

from stepscope.core.dataclass import record


@record
class Parts:
    """A stretch of time split by what the device did; overlapping streams count once.

    ``compute_ns + exposed_comm_ns + exposed_memory_ns + idle_ns == window_ns`` and
    ``busy_ns + idle_ns == window_ns``, exactly.
    """

    window_ns: int
    compute_ns: int
    comm_ns: int
    memory_ns: int
    overlap_ns: int  # communication under computation
    exposed_comm_ns: int
    exposed_memory_ns: int  # copies under neither computation nor communication
    busy_ns: int
    idle_ns: int

    @property
    def exposed_comm_fraction(self) -> float:
        """Exposed communication / window; 0 for an empty window."""
        return self.exposed_comm_ns / self.window_ns if self.window_ns else 0.0

    @property
    def hidden_fraction(self) -> float | None:
        """Share of communication that ran under computation; None without communication."""
        return self.overlap_ns / self.comm_ns if self.comm_ns else None


@record
class RankBudget:
    """The whole capture of one rank: from the first to the last event of the source, or from its first step's mark to the
    end of the last step's where these lie further out.

    before_work_ns, after_work_ns: idle time of the window before the first event and after the last one.
    """

    rank: int
    source: str  # device | cpu_spans
    start_ns: int
    parts: Parts
    event_count: int
    before_work_ns: int = 0
    after_work_ns: int = 0


@record
class StepBudget:
    """One training step, whole: from its mark on the host, or where the device is done with what was launched before, to
    where the next one begins; where a step's first work starts beside earlier work, from that on.

    ``boundary`` = launch (as said), or host (no launches recorded: the mark's own times). marked_by: profiler | range |
    optimizer. kind: step, or prefill and decode of a model that is served. start_up_ns: idle time in it that comes once.
    """

    rank: int
    step: int
    boundary: str
    start_ns: int
    host_ns: int  # length of its mark
    parts: Parts
    marked_by: str = "profiler"
    kind: str = "step"
    start_up_ns: int = 0

    @property
    def usual_ns(self) -> int:
        """Its length without what comes once."""
        return self.parts.window_ns - self.start_up_ns


Phase = Literal["data", "forward", "backward", "communication", "optimizer", "evaluation", "other"]
"""What the host was at; ``other``: none of these."""


@record
class PhaseBudget:
    """Share of one phase in the window; over all phases each column sums to the window's.

    An instant of computation belongs to the phase that launched it, communication (``comm_ns``; exposed: under no
    computation) and copies likewise, idle time to the phase that was to launch next.
    """

    rank: int
    phase: Phase
    compute_ns: int
    exposed_comm_ns: int
    exposed_memory_ns: int
    idle_ns: int
    comm_ns: int
    host_ns: int  # time the host spent in the phase's annotations or operators


@record
class IdleCause:
    """Idle time of the device by cause; over all causes it sums to the window's idle time.

    ``start_up``: the host did what comes once (modules are loaded, code is compiled, a first call is cold); ``host_late``:
    the next kernel had not been launched, or none came any more; ``sync``: it had not because a call of the runtime held
    the host first; ``data``: because the host was loading data; ``launch_latency``: launched, not yet started, the device
    idle, up to 100 us; ``kernel_gap``: queued in time, gap of at most 10 us; ``dependency``: queued, longer; ``unknown``:
    the launch was not recorded; ``pages``: none exists, the driver moves pages of unified memory next. On CPU jobs: ``data``
    and ``outside_operators``. ``long_gap``: of any
    cause, as in ``LongGap``, and in no other row. call: the host's call with most of the time of ``start_up``, ``sync``,
    ``host_late`` or ``dependency``: the one that comes once, that waited, that launched late, that waits meanwhile; of
    ``data`` the function of Python, where stacks were recorded; of ``pages`` the copy.
    """

    rank: int
    cause: str
    idle_ns: int
    gap_count: int
    largest_ns: int
    call: str | None = None


@record
class LongGap:
    """One gap in a rank's work that is no part of the usual step: a checkpoint, an evaluation, a stall.

    after_ns: from the window's start. cause: as in ``IdleCause``, had it been a usual gap. step: the one it began in or
    after. host_in: the operator or annotation that fills most of it.
    """

    rank: int
    after_ns: int
    gap_ns: int
    cause: str
    step: int | None
    host_in: str | None


@record
class GroupBudget:
    """Communication of one rank in one process group. size: ranks in it; size_bytes: payload of all its calls.

    kind: dp | tp | pp | ep | cp, or empty. kind_source: name (its description says so) | operations (what it does) | empty.

    exposed_ns: under no computation of this rank. Groups that communicate at once count the time each.
    """

    rank: int
    group: str
    description: str
    size: int | None
    collectives: int
    size_bytes: int | None
    comm_ns: int
    exposed_ns: int
    kind: str = ""
    kind_source: str = ""


@record
class OutsideWork:
    """Device work that no recorded step launched."""

    rank: int
    before_first_step: int  # events
    after_last_step: int
    launched_before_window: int  # events without a recorded launch
    before_ns: int  # busy time of it before the first step's device work


@record
class BudgetVerdict:
    """What bounds the step, in one line, with the numbers that decided it."""

    kind: (
        str  # compute | communication | waiting | input | launch | memory | balanced | overhead | start-up | stall | ..
    )
    text: str
    share: float | None  # of the window, for the part that decided
    compute_to_comm_ratio: float | None  # compute busy / communication busy net of waiting


@record
class StepUtilisation:
    """One step: MFU and HFU = FLOP / (step time x devices x peak); None where that FLOP count is unknown."""

    step: int
    step_ns: int
    mfu: float | None
    hfu: float | None


@record
class Utilisation:
    """Model and hardware FLOP utilisation of one rank, against the dense peak of ``dtype``.

    model_flop: per step, forward and backward as the architecture asks (2 FLOP per multiply-add). hardware_flop: per
    step, recomputation included. mfu, hfu: of the median step. devices: that share ``model_flop``.
    flop_source: given | recorded | shapes. flop_coverage: share of the matrix kernels' time that these FLOP account for;
    None where they are given or no such kernel ran. A figure that is None has its reason in ``unavailable``. ``error``
    says what cannot be: a utilisation above 1.
    """

    rank: int
    device_name: str | None
    dtype: str | None
    dtype_source: str | None  # given | kernels | inputs
    peak_flops_per_s: float | None
    peak_source: str | None
    devices: int
    model_flop: float | None
    hardware_flop: float | None
    flop_source: str | None
    flop_incomplete: tuple[str, ...]  # operators that multiply matrices and are not counted
    step_ns: float | None
    mfu: float | None
    hfu: float | None
    steps: tuple[StepUtilisation, ...]
    formula: str
    unavailable: str | None
    error: str | None
    flop_coverage: float | None = None


KINDS = ("compute", "hidden_comm", "exposed_comm", "copies")
"""compute, exposed_comm, copies and idle time (what is left) tile the window as in ``trace_budget.Parts``; hidden_comm
lies under compute. copies: under neither computation nor communication."""

WAITING = {"exposed_comm": "exposed_wait", "hidden_comm": "hidden_wait"}
"""Kind of communication -> the part of it that is waiting for a rank that has not arrived, once ranks are compared."""


@record
class KindSpans:
    """The spans of one kind. total_ns, count: of the spans as they were, whatever was merged since.

    kept: spans in ``packed``: base64 of LEB128 numbers, by turns the gap since the last span's end and the span's length,
    in units of ``RankSpans.unit_ns``; the first gap is from ``RankSpans.start_ns``.
    """

    kind: str
    total_ns: int
    count: int
    kept: int
    packed: str


@record
class NamedSpan:
    """One of the longest events, with its kernel's, collective's or operator's name."""

    start_ns: int
    duration_ns: int
    name: str


@record
class IdleSpan:
    """One of the longest gaps in a rank's work. cause: as in ``trace_budget.IdleCause``, the one with most of the gap."""

    start_ns: int
    duration_ns: int
    cause: str


@record
class RankSpans:
    """One rank's timeline. source: device | cpu_spans. start_ns, window_ns: first start to last end, on its own clock.

    merged_ns: gaps up to this length were closed to make the spans fewer; 0: they are as recorded. Edges are within
    ``unit_ns`` of the true ones.
    """

    rank: int
    source: str
    start_ns: int
    window_ns: int
    unit_ns: int
    merged_ns: int
    kinds: tuple[KindSpans, ...]
    named: tuple[NamedSpan, ...] = ()
    gaps: tuple[IdleSpan, ...] = ()

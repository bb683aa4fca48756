"""Where the time of one rank went: window, steps, phases, process groups, idle by cause. All in nanoseconds."""

from __future__ import annotations

from typing import Literal

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBudget:
    """The whole capture of one rank: from the first to the last event of the source."""

    rank: int
    source: str  # device | cpu_spans
    start_ns: int
    parts: Parts
    event_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBudget:
    """One training step. Steps tile the window: each begins with the first device work that it launched.

    ``boundary`` = launch (as said), or host (no launches recorded: the annotation's own times).
    """

    rank: int
    step: int
    boundary: str
    start_ns: int
    host_ns: int  # length of the ProfilerStep annotation
    parts: Parts


Phase = Literal["data", "forward", "backward", "communication", "optimizer", "evaluation", "other"]
"""What the host was at; ``other``: none of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleCause:
    """Idle time of the device by cause; over all causes it sums to the window's idle time.

    ``host_late``: the next kernel had not been launched; ``sync``: it had not because the host waited for the
    device first; ``data``: because the host was loading data; ``launch_latency``: launched, not yet started,
    the device idle; ``kernel_gap``: queued in time, gap of at most 10 us; ``dependency``: queued in time, longer
    gap; ``unknown``: the launch was not recorded. On CPU jobs: ``data`` and ``outside_operators``. ``long_gap``: of any
    cause, as in ``LongGap``, and in no other row. call: the host's call with most of a ``sync``'s or ``host_late``'s time:
    the one that waited, the one that launched late.
    """

    rank: int
    cause: str
    idle_ns: int
    gap_count: int
    largest_ns: int
    call: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OutsideWork:
    """Device work that no recorded step launched."""

    rank: int
    before_first_step: int  # events
    after_last_step: int
    launched_before_window: int  # events without a recorded launch
    before_ns: int  # busy time of it before the first step's device work


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetVerdict:
    """What bounds the step, in one line, with the numbers that decided it."""

    kind: str  # compute | communication | waiting | input | launch | memory | balanced | overhead | stall | idle | unknown
    text: str
    share: float | None  # of the window, for the part that decided
    compute_to_comm_ratio: float | None  # compute busy / communication busy net of waiting

"""The memory timeline of one rank, from the profiler's memory events."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMemory:
    """The most allocated during one step, and what was left at its end."""

    step: int
    peak_bytes: int
    end_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseMemory:
    """The most allocated while the host was in one phase, whatever allocated it, and how much of it the phase added.

    added_bytes: the most that it grew within one of the phase's spans, above what was there when the span began.
    """

    phase: str
    peak_bytes: int
    added_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
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

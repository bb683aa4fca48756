"""What HolisticTraceAnalysis 0.5.0 answers for the same traces: its tables, its numbers, its mistakes.

An oracle for our reading of its files; the correct numbers are in stepscope's own trace records.
Times are microseconds, as HTA prints them. ``None`` stands where HTA has NaN.
"""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaFailure:
    """HTA gives no table here but an exception. ``raises``: its class; ``why``: what of the trace causes it."""

    raises: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaTemporal:
    """One row of get_temporal_breakdown. ``compute`` includes whatever runs under computation."""

    rank: int
    idle_us: float
    compute_us: float
    non_compute_us: float
    kernel_us: float  # last end - first start
    idle_percent: float | None
    compute_percent: float | None
    non_compute_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaOverlap:
    """One row of get_comm_comp_overlap: share of communication under computation; None without communication."""

    rank: int
    overlap_percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaKernelType:
    """One row of get_gpu_kernel_breakdown's first table: time of one combination of classes, over all ranks."""

    kernel_type: str
    sum_us: int
    percent: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaKernel:
    """One row of its second table. In a table with "others", max, min, mean and std are over sums, not kernels."""

    rank: int
    kernel_type: str
    name: str
    sum_us: float
    max_us: float
    min_us: float
    mean_us: float
    std_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaIdle:
    """One row of get_idle_time_breakdown: gaps of one stream, which are not gaps of the device."""

    rank: int
    stream: int
    category: str  # host_wait | kernel_wait | other
    idle_us: float
    ratio: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaDescription:
    """Summary of a series of values as pandas describes it; quartiles are interpolated linearly."""

    count: int
    mean: float
    std: float | None  # None for a single value
    min: float
    p25: float
    p50: float
    p75: float
    max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaQueue:
    """One row of get_queue_length_summary: launches outstanding on a stream."""

    rank: int
    stream: int
    length: HtaDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaBandwidth:
    """One row of get_memory_bw_summary: the sum of recorded bandwidths (GB/s) of the copies running at once."""

    rank: int
    name: str
    gb_per_s: HtaDescription


@dataclass(frozen=True, slots=True, kw_only=True)
class HtaReport:
    """Every table, in HTA's row order. ``stragglers``: the ranks it names, always two where it names any."""

    include_last_profiler_step: bool
    ns_rounding: bool
    temporal: tuple[HtaTemporal, ...] | HtaFailure
    overlap: tuple[HtaOverlap, ...]
    kernel_types: tuple[HtaKernelType, ...]
    kernels: tuple[HtaKernel, ...]
    idle: tuple[HtaIdle, ...] | HtaFailure
    queues: tuple[HtaQueue, ...] | HtaFailure
    bandwidths: tuple[HtaBandwidth, ...]
    stragglers: tuple[int, ...] | HtaFailure

"""Measuring collectives: what a cell asks for, what a rank measured, and one row per size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.records.nouns import Status

CommKind = Literal["collective", "pairs", "matmul", "overlap"]
Mode = Literal["blocking", "async", "coalesced", "grouped"]
Pacing = Literal["barrier", "back_to_back"]


@record
class CommSpec:
    """One sweep over sizes: everything that decides its result.

    kind: ``collective``; ``pairs``: messages between every two ranks; ``matmul``: square matrix products on each rank, no
    communication; ``overlap``: the collective beside matrix products.
    sizes_bytes: S in the nccl-tests sense, as asked for; for ``matmul`` the bytes of one operand matrix.
    reduce_op: sum, avg, max, min, product; None for collectives that only move data.
    in_flight: calls outstanding at once (``async``), in one coalescing manager (``coalesced``) or in one group of
    point-to-point calls (``grouped``); a sample is then the time of all of them.
    pattern: of send_recv: ``uni`` (0 -> 1, 2 -> 3, ...), ``bi`` (both ways at once) or ``ring``; None for the others.
    pacing: ``barrier``: an untimed barrier before each call, ``back_to_back``: none.
    """

    cell_id: str
    kind: CommKind
    op: str
    dtype: str
    reduce_op: str | None
    in_place: bool
    mode: Mode
    in_flight: int
    pattern: Literal["uni", "bi", "ring"] | None
    root: int
    pacing: Pacing
    sizes_bytes: tuple[int, ...]
    world_size: int
    device: Literal["cpu", "cuda"]
    backend: Literal["gloo", "nccl"]
    threads_per_rank: int | Literal["auto"]
    env: Mapping[str, str] = field(default_factory=dict)
    network: str | None = None


@record
class CommMeasure:
    """How to measure; not part of a cell's identity.

    warmup, iterations: exact numbers, or None: found by measurement. budget_ns: of one size. check: every size's result
    is verified. timeout_ns: of one size; a collective that does not return within it is reported, not waited for.
    nccl_debug: NCCL_DEBUG_SUBSYS for a per-rank NCCL_DEBUG_FILE; empty: those that stepscope reads; None: off.
    """

    warmup: int | None = None
    iterations: int | None = None
    ci_fraction: float = 0.02
    budget_ns: int = 2_000_000_000
    timeout_ns: int = 120_000_000_000
    check: bool = True
    nccl_debug: str | None = None


@record
class CommHeader:
    """First line of a rank's samples of a comm cell."""

    cell_id: str
    rank: int
    world_size: int
    host: str
    clock: Literal["perf_counter", "cuda_event"]


@record
class CommSample:
    """One size on one rank. ``times_ns[i]`` of all ranks belong to the same call; time of the call = their maximum.

    asked_bytes: as in the spec. size_bytes: S really sent, rounded down to what type and world divide; None when skipped.
    times_ns: timed calls in order; warmup_ns: the calls before. skipped: why nothing was measured. correct: None: not
    checked. wrong: first wrong element (index, got, expected) when not correct.
    peer: of ``pairs``, (sender, receiver); both directions at once have ``bidirectional``.
    beside_ns: of ``overlap`` and ``matmul``: times of the matrix products of the same iterations.
    label: variant within the size (``alone``, ``together``), empty when there is one.
    """

    asked_bytes: int
    size_bytes: int | None
    numel: int | None
    times_ns: tuple[int, ...]
    warmup_ns: tuple[int, ...]
    correct: bool | None
    stop_reason: str | None = None
    skipped: str | None = None
    wrong: str | None = None
    peer: tuple[int, int] | None = None
    bidirectional: bool = False
    beside_ns: tuple[int, ...] = ()
    label: str = ""


@record
class RankOfCell:
    """A rank of a cell, with the device that it had."""

    cell_id: str
    rank: int
    local_rank: int
    world_size: int
    host: str
    pid: int
    device_name: str
    torch_version: str


@record
class CommSummary(RankOfCell):
    """Final word of one rank about one comm cell.

    unsupported: the backend cannot do it, in its own words: the cell ends as ``unsupported`` and the group goes on.
    """

    backend_version: str | None
    scheduler_policy: str
    num_threads: int
    unsupported: str | None = None
    notes: tuple[str, ...] = ()


@record
class CommRow:
    """One size of one comm cell in results.jsonl; a cell without any size has one row with its status. Unknown is None.

    time_ns_*: of one call (of ``in_flight`` calls together), maximum over ranks first, then over iterations.
    low, high: 95% interval of the median. rank_spread: (slowest - fastest rank) / slowest, of the ranks' medians.
    algbw, busbw: from the median, bytes/s, all ``in_flight`` calls counted. link_fraction: busbw / link peak.
    flops_per_s: of matmul rows. slowdown: of overlap rows, together / alone of the collective; beside_slowdown: of the
    matrix product. rank_hosts: of pairs rows, the host of each rank in rank order; empty: not known. job_hosts: the host of
    each of several jobs that know nothing of each other and wrote into one output, which does not tell whose row it is.
    """

    cell_id: str
    status: Status
    error: str | None
    kind: CommKind
    op: str
    dtype: str
    reduce_op: str | None
    in_place: bool
    mode: Mode
    in_flight: int
    pattern: str | None
    pacing: Pacing
    root: int
    world_size: int
    hosts: int | None
    device: str
    backend: str
    env: Mapping[str, str]
    network: str | None
    size_bytes: int | None
    asked_bytes: int | None
    numel: int | None
    iterations: int | None
    warmup: int | None
    stop_reason: str | None
    time_ns_median: float | None
    time_ns_low: float | None
    time_ns_high: float | None
    time_ns_mean: float | None
    time_ns_min: float | None
    time_ns_p90: float | None
    time_ns_p99: float | None
    time_ns_max: float | None
    rank_spread: float | None
    slowest_rank: int | None
    algbw_bytes_per_s: float | None
    busbw_bytes_per_s: float | None
    link_peak_bytes_per_s: float | None
    link_fraction: float | None
    correct: bool | None
    peer: tuple[int, int] | None = None
    bidirectional: bool = False
    flops_per_s: float | None = None
    slowdown: float | None = None
    beside_slowdown: float | None = None
    scheduler_policy: str | None = None
    notes: tuple[str, ...] = ()
    rank_hosts: tuple[str, ...] = ()
    job_hosts: tuple[str, ...] = ()

    @property
    def time_ns(self) -> float | None:
        """The time that the rates come from: the median, or the mean where a source has nothing else."""
        return self.time_ns_mean if self.time_ns_median is None else self.time_ns_median


@record
class Arrivals:
    """Who came last to the calls of one communicator that its ranks leave together, of a job that trained.

    hosts: by its ranks. calls: those of which the times of all ranks are known. late_calls: by rank, calls to which it
    came last, by more than noise; late_ns: how much later than the one before it, summed. transfer_ns: of all calls, from
    the last rank on, summed.
    """

    communicator: str
    hosts: tuple[str, ...]
    calls: int
    late_calls: tuple[int, ...]
    late_ns: tuple[float, ...]
    transfer_ns: float

"""Timing calls, and when to stop: the same on all ranks, decided by rank 0 between timed calls."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain, pairwise
from time import perf_counter_ns
from typing import Literal, cast

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from stepscope.core.dataclass import record
from stepscope.rank.collectives import Exchange, Issue, Waitable
from stepscope.rank.mesh import Mesh
from stepscope.rank.pace import Control, SlowestRanks
from stepscope.rank.timer import ClockName, between_ns, cuda_event
from stepscope.records.comm import CommMeasure, Mode
from stepscope.stats.warmup import checkpoints, warmup_end

Call = Callable[[], object]

COALESCED_BY_TORCH = frozenset({"all_reduce", "all_gather", "reduce_scatter"})
"""torch hands these to the backend as one call on many tensors; all others need a backend that can hold calls back."""


class BackendLacksError(Exception):
    """The backend cannot do this, in its own words."""


def combine(exchanges: Sequence[Exchange], *, op: str, mode: Mode, mesh: Mesh) -> Call:
    """Issue every exchange once and return when all are through (on GPU: are waited for by the current stream).

    Raises BackendLacksError; on every rank alike, and with nothing sent.
    """
    issues = [exchange.issue for exchange in exchanges]
    if mode == "blocking":
        return _one_by_one_call(issues)
    if mode == "async":
        return _in_flight_call(issues)
    if mode == "coalesced":
        return _coalesced_call(issues, op, mesh)
    if not all(exchange.is_send_recv for exchange in exchanges):
        raise BackendLacksError(f"torch groups point-to-point calls only, not {op}")
    return _grouped_call([message for exchange in exchanges for message in exchange.messages])


def _one_by_one_call(issues: Sequence[Issue]) -> Call:
    """Return a call that waits for each before the next."""
    if len(issues) == 1:
        return partial(issues[0], async_op=False)

    def call() -> None:
        for issue in issues:
            issue(async_op=False)

    return call


def _in_flight_call(issues: Sequence[Issue]) -> Call:
    """Return a call that issues all, then waits for all."""

    def call() -> None:
        works = [issue(async_op=True) for issue in issues]
        for work in works:
            if work is not None:
                work.wait()

    return call


def _coalesced_call(issues: Sequence[Issue], op: str, mesh: Mesh) -> Call:
    """Return a call that issues all as one group of the backend."""
    device = None if op in COALESCED_BY_TORCH else mesh.device
    if device is not None:
        _try_to_hold_back(mesh, device)

    def call() -> None:
        with c10d._coalescing_manager(mesh.group, device, async_ops=True) as manager:
            for issue in issues:
                issue(async_op=True)
        manager.wait()

    return call


def _try_to_hold_back(mesh: Mesh, device: torch.device) -> None:
    """Ask the backend itself: torch's own context manager would stay half open where it refuses."""
    group = mesh.group or c10d._get_default_group()
    try:
        group._start_coalescing(device)
        group._end_coalescing(device)
    except (RuntimeError, NotImplementedError) as error:
        raise BackendLacksError(first_line(error)) from error


def _grouped_call(messages: list[dist.P2POp]) -> Call:
    """Return a call that issues all messages as one batch."""
    if not messages:
        return lambda: None

    def call() -> None:
        for work in dist.batch_isend_irecv(messages):
            cast(Waitable, work).wait()

    return call


def leave_coalescing(mesh: Mesh) -> None:
    """Close what an error has left open in torch: until then every call is taken for part of a coalesced one."""
    c10d._world.pg_coalesce_state.pop(mesh.group or c10d._get_default_group(), None)


def first_line(error: BaseException) -> str:
    """Return the error in one line."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


StopReason = Literal["fixed number of calls", "interval tight enough", "budget used up", "most calls"]

WARMUP_CHECKS = (1, 3, 5, 7, 10, 15, 22, 33, 49, 60)
WARMUP_SHARE_OF_BUDGET = 0.25
FIRST_CHECKS = (3, 5)
MOST_CALLS = 10_000
"""Most calls of one size: more narrow no interval that 10,000 have not, and every one is a number in a file."""


@record
class Timed:
    """Calls of one size on this rank, in order."""

    warmup_ns: tuple[int, ...]
    times_ns: tuple[int, ...]
    stop_reason: StopReason


def clock_of(device: torch.device) -> ClockName:
    return "cuda_event" if device.type == "cuda" else "perf_counter"


def time_calls(
    call: Call,
    count: int,
    *,
    clock: ClockName = "perf_counter",
    enter: Callable[[], object] | None = None,
    pace: Callable[[], object] | None = None,
) -> list[int]:
    """Return the durations of ``count`` calls in ns. Neither ``enter`` nor ``pace``, both called before each, counts with a
    pace.

    pace: an untimed barrier before each call; None: back to back, where a call lasts until the next one begins.
    enter: tells the heartbeat. The loop's own share of a time is two readings of the clock.
    """
    if clock == "cuda_event":
        return _time_on_device(call, count, enter or _no_callback, pace)
    now, enter = perf_counter_ns, enter or _no_callback
    if pace is None:
        stamps = [now()]
        for _ in range(count):
            enter()
            call()
            stamps.append(now())
        return [end - start for start, end in pairwise(stamps)]
    times = [0] * count
    for i in range(count):
        enter()
        pace()
        start = now()
        call()
        times[i] = now() - start
    return times


def _time_on_device(
    call: Call, count: int, enter: Callable[[], object], pace: Callable[[], object] | None
) -> list[int]:
    """Return the times of so many calls, ns, by the device's own clock."""
    if count == 0:
        return []
    starts, ends = [cuda_event() for _ in range(count)], [cuda_event() for _ in range(count)]
    if pace is None:  # the end of a call is the start of the next
        starts = [cuda_event(), *ends[:-1]]
        starts[0].record()
    for start, end in zip(starts, ends, strict=True):
        enter()
        if pace is not None:
            pace()
            start.record()
        call()
        end.record()
    ends[-1].synchronize()
    return [between_ns(start, end) for start, end in zip(starts, ends, strict=True)]


def _no_callback() -> None:
    """Stand in for a callback that nobody asked for."""


def measure(
    run: Callable[[int], list[int]],
    settings: CommMeasure,
    control: Control,
    *,
    on_phase: Callable[[str], object] = lambda phase: None,  # noqa: ARG005 - nobody to tell
) -> Timed:
    """Make warm-up and timed calls of one size. ``run(count)``: durations of so many more calls, made now on all ranks.

    Fixed numbers are obeyed exactly. Otherwise warm-up ends where the times say so, and measuring where the 95%
    interval of the median of max-over-ranks is tight enough, or the budget is out.
    """
    started = time.monotonic_ns()
    on_phase("warmup")
    warmup = _warm_up_ns(run, settings, control, started)
    on_phase("measure")
    if settings.iterations is not None:
        times = run(settings.iterations)
        reason: StopReason = "fixed number of calls"
    else:
        times, reason = _ns_until_tight(run, settings, control, started)
    return Timed(warmup_ns=tuple(warmup), times_ns=tuple(times), stop_reason=reason)


def _warm_up_ns(run: Callable[[int], list[int]], settings: CommMeasure, control: Control, started: int) -> list[int]:
    """Call until times are steady or the time for it is spent; return the times, ns."""
    if settings.warmup is not None:
        return run(settings.warmup)
    times: list[int] = []
    for upto in WARMUP_CHECKS:
        times += run(upto - len(times))
        spent = time.monotonic_ns() - started
        settled = spent > WARMUP_SHARE_OF_BUDGET * settings.budget_ns or warmup_end(times) is not None
        if control.decide(settled):
            break
    return times


def _ns_until_tight(
    run: Callable[[int], list[int]], settings: CommMeasure, control: Control, started: int
) -> tuple[list[int], StopReason]:
    """Call until the median's interval is tight or the budget is spent; return the times, ns, and why it stopped."""
    judge = _Judge(settings, started)
    times: list[int] = []
    more = FIRST_CHECKS[0]
    while True:
        latest = run(more)
        times += latest
        per_rank = control.gather(latest)
        decision = control.decide(None if per_rank is None else judge.after(per_rank))
        reason: StopReason | None = decision["reason"]
        if reason is not None:
            return times, reason
        more = decision["more"]


class _Judge:
    """Rank 0's memory of one size."""

    def __init__(self, settings: CommMeasure, started: int) -> None:
        self._budget_ns = settings.budget_ns
        self._started = started
        self._timed_from = time.monotonic_ns()
        self._slowest = SlowestRanks(settings.ci_fraction)
        self._checks = chain(FIRST_CHECKS, checkpoints())

    def after(self, per_rank: list[list[int]]) -> dict[str, object]:
        """Say what to do after these further calls: {"more": calls to make next, "reason": why to stop or None}."""
        tight = self._slowest.add(per_rank)
        done, now = len(self._slowest.times_ns), time.monotonic_ns()
        left_ns = self._budget_ns - (now - self._started)
        affordable = int(left_ns * done / max(1, now - self._timed_from))
        reason: StopReason | None = None
        if tight:
            reason = "interval tight enough"
        elif affordable < 1:
            reason = "budget used up"
        elif done >= MOST_CALLS:
            reason = "most calls"
        following = next(check for check in self._checks if check > done)
        return {"more": min(following - done, affordable, MOST_CALLS - done), "reason": reason}

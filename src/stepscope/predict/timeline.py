"""A step's time from its backward pass and its buckets: what travels when, what hides, and which bucket size is best.

The backward pass makes gradients ready one after the other (measured, :mod:`stepscope.records.prediction`); a collective is
launched when all its gradients are ready and all collectives before it are launched; it starts when a lane is free.
What is left after the end of the backward pass is exposed. Pure: times of collectives come from the caller.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import unknown
from stepscope.predict.overlap import STARTUP_BYTES, Transfer, Transport, run, transport_of
from stepscope.records.plan import CommOp, ModelFacts, Setting
from stepscope.records.prediction import (
    BackwardProfile,
    BucketCandidate,
    BucketChoice,
    BucketSpan,
    ReadyGradient,
    Timeline,
)
from stepscope.strategies import REGISTRY as STRATEGIES

PHASES = ("forward", "backward", "after_backward", "optimizer")


@record
class Timing:
    """Progress since the start of the step, ns: time of computation alone. blocking: computation waits from ready on."""

    ready_ns: float
    needed_ns: float
    blocking: bool


def timings(profile: BackwardProfile, plan: Sequence[CommOp]) -> tuple[Timing, ...]:
    """Return a timing for each of ``plan``, in launch order.

    Gradients: ready as measured, needed at the end of the backward pass. Gathers of the forward pass: needed at even steps
    of it, as units are alike, and ready one unit ahead; of the backward pass: needed where the gradients reduced before
    are ready. ``after_backward`` follows the backward pass, ``optimizer`` the optimizer. Where the plan says that a
    collective blocks, it is called where it is needed. Raises DataError for a gradient that the profile does not know,
    UsageError for an unknown phase.
    """
    begin = float(profile.before_ns)
    end, stepped = begin + profile.backward_ns, begin + profile.backward_ns + profile.optimizer_ns
    ready = {r.name: begin + min(r.ready_ns, profile.backward_ns) for r in profile.ready}
    ready |= dict.fromkeys(profile.unused, end)
    computed = _computed_ns(plan, ready, end)
    in_forward = sum(op.phase == "forward" for op in plan)
    timed: list[Timing] = []
    gathered, reduced, before = begin - profile.forward_ns, begin, 0
    for op, done in zip(plan, computed, strict=True):
        if op.phase == "forward":
            needed = begin - profile.forward_ns * (1 - before / in_forward)
            at, before = gathered, before + 1
            gathered = needed
        elif op.phase == "backward" and op.op == "all_gather":
            at, needed = gathered, reduced
            gathered = needed
        elif op.phase == "backward":
            at, needed = done, end
            reduced = max(reduced, done)
        else:
            at = needed = stepped if op.phase == "optimizer" else end
        blocking = op.blocking or op.phase == "after_backward"
        if blocking:
            at = needed = needed if op.op == "all_gather" or op.phase != "backward" else at
        timed.append(Timing(ready_ns=at, needed_ns=needed, blocking=blocking))
    return tuple(timed)


def _computed_ns(plan: Sequence[CommOp], ready: dict[str, float], end: float) -> list[float]:
    """Return when all that each collective carries is computed. One without gradients of its own (an empty part of a bucket)
    goes with the one that follows."""
    computed = [end] * len(plan)
    following = end
    for place in reversed(range(len(plan))):
        op = plan[place]
        if op.phase not in PHASES:
            raise UsageError(unknown("phase of a collective", op.phase, PHASES))
        missing = [name for name in op.members if name not in ready]
        if missing and op.phase in ("backward", "after_backward") and op.op != "all_gather":
            raise DataError(
                f"the backward profile does not know the gradient of {missing[0]!r}",
                why="it was recorded with another model than the planned one",
            )
        following = computed[place] = max((ready[name] for name in op.members if name in ready), default=following)
    return computed


CommTime = Callable[[str, int], float]
"""Time of one collective alone, ns, from its op and its size in bytes (nccl-tests sense)."""

CANDIDATES_MB = (1.0, 2.0, 4.0, 8.0, 16.0, 25.0)
TIE = 0.005
"""Predicted steps this close are equal; then the larger buckets win, as fewer collectives disturb computation less."""


def slowest_of(profiles: Sequence[BackwardProfile]) -> BackwardProfile:
    """Make one profile for all ranks of a cell: a collective starts when the last rank's gradients are ready.

    The ranks' steps are taken to begin together, as the last collective of the step before leaves them. Raises DataError.
    """
    if not profiles:
        raise DataError("no rank left a backward profile", fix="run the cell again with this version")
    names = {r.name for r in profiles[0].ready}
    if any({r.name for r in p.ready} != names for p in profiles):
        raise DataError("the ranks' backward profiles have different parameters")
    before = max(p.before_ns for p in profiles)
    lag = [p.before_ns - before for p in profiles]
    ready: dict[str, int] = {}
    for profile, late in zip(profiles, lag, strict=True):
        for r in profile.ready:
            ready[r.name] = max(ready.get(r.name, 0), r.ready_ns + late)
    last = max(profiles, key=lambda p: p.before_ns)
    end = max(profiles, key=lambda p: p.after_ns)
    return BackwardProfile(
        clock=last.clock,
        steps=min(p.steps for p in profiles),
        micro_batch=max(p.micro_batch for p in profiles),
        data_wait_ns=last.data_wait_ns,
        forward_ns=last.forward_ns,
        earlier_backward_ns=last.earlier_backward_ns,
        backward_ns=max(p.backward_ns + late for p, late in zip(profiles, lag, strict=True)),
        optimizer_ns=end.optimizer_ns,
        other_ns=end.other_ns,
        ready=tuple(
            ReadyGradient(name=name, ready_ns=at) for name, at in sorted(ready.items(), key=lambda item: item[1])
        ),
        unused=last.unused,
    )


def step_timeline(
    profile: BackwardProfile,
    plan: Sequence[CommOp],
    comm_time: CommTime,
    *,
    transport: Transport,
    link: Callable[[str], float] = lambda _: 1.0,
) -> Timeline:
    """The timeline of one step of a strategy whose collectives are ``plan``, in launch order.

    What each waits for and what waits for it: :func:`stepscope.predict.timeline.timings`. link: share of the link's rate
    that a call of an op takes alone. A strategy's own copies and casts are not in the model. Raises DataError for a
    gradient that the profile does not know.
    """
    jobs = _plan_transfers(profile, plan, comm_time, link, transport)
    marks = [_progress_mark(profile.before_ns), _progress_mark(profile.before_ns + profile.backward_ns)]
    run([*jobs, *marks], float(profile.step_ns), transport)
    begin, end = (mark.ready_at for mark in marks)
    inside = sum(
        job.end - job.start
        for op, job in zip(plan, jobs, strict=True)
        if job.blocking and op.phase == "backward" and job.start < end
    )
    ahead = begin - profile.before_ns
    backward = round(end - begin - inside)
    buckets = tuple(
        _bucket_span(i, op, job, begin, backward) for i, (op, job) in enumerate(zip(plan, jobs, strict=True))
    )
    following = _covered_ns([bucket for op, bucket in zip(plan, buckets, strict=True) if op.phase == "optimizer"])
    tail = max((b.end_ns for op, b in zip(plan, buckets, strict=True) if "backward" in op.phase), default=0)
    return Timeline(
        before_ns=round(begin),
        backward_ns=backward,
        backward_alone_ns=profile.backward_ns,
        exposed_ns=max(round(inside), tail - backward, 0),
        after_ns=profile.after_ns + following,
        waits_ns=round(ahead + following),
        comm_ns=_covered_ns(buckets),
        buckets=buckets,
    )


def _progress_mark(progress: float) -> Transfer:
    """Return a transfer of nothing: it shows when that much is computed."""
    return Transfer(ready=float(progress), needed=math.inf, latency=0.0, wire=0.0)


def best_bucket(
    profile: BackwardProfile,
    facts: ModelFacts,
    setting: Setting,
    comm_time: CommTime,
    *,
    strategy: str = "ddp",
    options: Mapping[str, object] | None = None,
    candidates_mb: Sequence[float] = CANDIDATES_MB,
    transport: Transport | None = None,
    naive_profile: BackwardProfile | None = None,
) -> BucketChoice:
    """The bucket size (MiB) with the shortest predicted step; candidates that realise one partition count once.

    strategy: one with ``bucket_cap_mb`` among its options; options: its other ones. profile: best taken of that strategy,
    with any size: where gradients are accumulated is its own business and part of backward (DDP's copies into and out of
    buckets are not: without reductions it makes none). transport: None: the backend's. naive_profile: of naive itself;
    None: the same.
    Raises UsageError where the strategy has no buckets or there is no candidate.
    """
    spec = STRATEGIES.load(strategy)
    if "bucket_cap_mb" not in spec.options.model_fields:
        raise UsageError(f"{strategy} has no buckets", fix="choose ddp or bucketed")
    if not candidates_mb:
        raise UsageError("no bucket size to choose from")
    how = transport or transport_of(setting.backend)
    others = {key: value for key, value in (options or {}).items() if key != "bucket_cap_mb"}

    def predicted(
        key: str, given: Mapping[str, object], taken: BackwardProfile = profile
    ) -> tuple[tuple[CommOp, ...], Timeline]:
        kind = STRATEGIES.load(key)
        plan = kind.comm_plan(facts, setting, kind.options.model_validate(dict(given)))
        return plan, step_timeline(taken, plan, comm_time, transport=how)

    by_plan: dict[tuple[CommOp, ...], tuple[list[float], Timeline]] = {}
    for cap in sorted(set(candidates_mb)):
        plan, timeline = predicted(strategy, others | {"bucket_cap_mb": cap})
        by_plan.setdefault(plan, ([], timeline))[0].append(cap)
    candidates = tuple(
        BucketCandidate(bucket_caps_mb=tuple(caps), timeline=timeline) for caps, timeline in by_plan.values()
    )
    shortest = min(c.timeline.step_ns for c in candidates)
    best = max(i for i, c in enumerate(candidates) if c.timeline.step_ns <= shortest * (1 + TIE))
    return BucketChoice(
        strategy=strategy,
        candidates=candidates,
        best=best,
        naive=predicted("naive", {}, naive_profile or profile)[1],
        default=predicted(strategy, others)[1],
    )


def _plan_transfers(
    profile: BackwardProfile,
    plan: Sequence[CommOp],
    comm_time: CommTime,
    link: Callable[[str], float],
    transport: Transport,
) -> list[Transfer]:
    """Return the plan as transfers, each from when its gradients are ready."""
    per_byte = {op: _wire_ns_per_byte(op, plan, comm_time) for op in {call.op for call in plan}}
    jobs: list[Transfer] = []
    for op, timing in zip(plan, timings(profile, plan), strict=True):
        alone = comm_time(op.op, max(1, op.size_bytes))
        wire = min(alone, op.size_bytes * per_byte[op.op])
        stall = transport.stall_ns(comm_time(op.op, min(STARTUP_BYTES, max(1, op.size_bytes))))
        jobs.append(
            Transfer(
                ready=timing.ready_ns,
                needed=timing.needed_ns,
                blocking=timing.blocking,
                latency=alone - wire,
                wire=wire,
                link=link(op.op),
                stall=min(stall, alone) if timing.needed_ns > timing.ready_ns else 0.0,
            )
        )
    return jobs


def _wire_ns_per_byte(op: str, plan: Sequence[CommOp], comm_time: CommTime) -> float:
    """The least time a byte takes in any size that travels, or in all of them as one: the wire, without latency."""
    sizes = {call.size_bytes for call in plan if call.op == op and call.size_bytes > 0}
    if not sizes:
        return 0.0
    sizes.add(sum(call.size_bytes for call in plan if call.op == op))
    return min(comm_time(op, size) / size for size in sizes)


def _bucket_span(index: int, op: CommOp, job: Transfer, begin: float, backward_ns: int) -> BucketSpan:
    """Return one collective on the time since the backward pass began, ns."""
    start, end = round(job.start - begin), round(job.end - begin)
    return BucketSpan(
        index=index,
        op=op.op,
        dtype=op.dtype,
        size_bytes=op.size_bytes,
        members=op.members,
        ready_ns=round(job.ready_at - begin),
        launch_ns=round(job.launch - begin),
        start_ns=start,
        end_ns=end,
        exposed_ns=end - start if job.blocking else max(0, end - max(start, backward_ns)),
        lane=job.lane,
    )


def _covered_ns(buckets: Iterable[BucketSpan]) -> int:
    """Time in which at least one of them runs."""
    covered, reach = 0, 0
    for bucket in sorted(buckets, key=lambda b: b.start_ns):
        covered += max(0, bucket.end_ns - max(bucket.start_ns, reach))
        reach = max(reach, bucket.end_ns)
    return covered

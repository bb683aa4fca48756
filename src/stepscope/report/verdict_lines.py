"""A verdict in lines: what the first screen, the page and the text report say of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.verdict_words import cost_line
from stepscope.records.diary import EventKind
from stepscope.records.verdict import Verdict, VerdictPart
from stepscope.results.diary import JobSteps, between_steps, late_ranks

MOST_RANKS = 8
"""Ranks of a part that are named one by one."""

WORTH_A_LINE = 0.005
"""Of the wall time, for events that are too small for a verdict."""

EVENT_NAMES: dict[EventKind, str] = {
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "garbage_collection": "garbage collection",
    "compilation": "compilation",
}
"""Events of a diary that take time of their own, in the order of legends."""

_COST_OF: dict[EventKind, str] = {
    "evaluation": "evaluation",
    "checkpoint": "checkpointing",
    "garbage_collection": "garbage-collection",
    "compilation": "compilation",
}


def coverage(verdict: Verdict) -> tuple[tuple[str, str], ...]:
    """(what, how much) of the second line: stake, steps, ranks."""
    parts = []
    if verdict.stake_fraction:
        parts.append(("stake", f"up to {1 / max(1 - verdict.stake_fraction, 0.01):.2g}x faster"))
    profiled = f", {verdict.steps_profiled} profiled" if verdict.steps_profiled else ""
    parts.append(("steps", f"{verdict.steps_timed:,} timed{profiled}"))
    world = verdict.world_size or verdict.ranks_seen
    hosts = f" on {counted(verdict.hosts, 'host')}" if verdict.hosts > 1 else ""
    parts.append(("ranks", f"{verdict.ranks_seen} of {world}{hosts}"))
    return tuple(parts)


def also(verdict: Verdict, steps: JobSteps | None) -> tuple[str, ...]:
    """A line for each cost after the first."""
    if steps is None:
        return ()
    late = late_ranks(steps)
    return tuple(cost_line(cost, steps, late) for cost in verdict.costs[1:])


def rows(parts: Sequence[VerdictPart], depth: int = 0) -> Iterator[tuple[int, VerdictPart]]:
    """The parts of a tree, each with its depth, each above those that it consists of."""
    for each in parts:
        yield depth, each
        yield from rows(each.parts, depth + 1)


def by_rank(part: VerdictPart) -> str:
    """The ranks of a part, where they differ; empty where they do not."""
    if len(part.by_rank) > MOST_RANKS:
        low, high = (pick(part.by_rank, key=lambda each: each[1]) for pick in (min, max))
        return f"rank {low[0]} {format_duration(low[1])} .. rank {high[0]} {format_duration(high[1])}"
    return ", ".join(f"rank {rank} {format_duration(ns)}" for rank, ns in part.by_rank)


def below(verdict: Verdict, steps: JobSteps | None) -> tuple[str, ...]:
    """What stands below the tree: evidence, events too small for a verdict (of the job, not of a step), the profiler's cost."""
    if steps is None:
        return verdict.evidence
    told = {cost.kind for cost in verdict.costs}
    small = [
        f"{each.kind.replace('_', ' ')}: {counted(each.count, 'time')}, {format_duration(each.mean_ns)} each, "
        f"{format_percent(each.share.value)} of the wall time"
        for each in between_steps(steps)
        if _COST_OF.get(each.kind) not in told and each.share.value >= WORTH_A_LINE
    ]
    return (*verdict.evidence, *small, *_profiler(verdict))


def _profiler(verdict: Verdict) -> tuple[str, ...]:
    if verdict.step_ns is None or verdict.profiled_step_ns is None:
        return ()
    change = verdict.profiled_step_ns / verdict.step_ns - 1
    return (
        f"a timed step takes {format_duration(verdict.step_ns)} (median), a profiled one "
        f"{format_duration(verdict.profiled_step_ns)} ({change:+.0%}): sizes above are those of timed steps",
    )

"""Lines that first screen, page and text report share: a verdict and its tree, the files of a folder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.units import format_bytes, format_duration
from stepscope.core.words import counted
from stepscope.records.finding import JobVerdict, VerdictPart
from stepscope.results.evidence import Evidence

MOST_RANKS = 8
"""Ranks of a part that are named one by one."""


def coverage(verdict: JobVerdict) -> tuple[tuple[str, str], ...]:
    """(what, how much) of the second line: stake, steps, ranks; nothing of a job that made no step."""
    if not verdict.steps_timed and not verdict.steps_profiled:
        return ()
    parts = []
    if verdict.stake_fraction:
        parts.append(("stake", f"up to {1 / max(1 - verdict.stake_fraction, 0.01):.2g}x faster"))
    profiled = f", {verdict.steps_profiled} profiled" if verdict.steps_profiled else ""
    parts.append(("steps", f"{verdict.steps_timed:,} timed{profiled}"))
    world = verdict.world_size or verdict.ranks_seen
    hosts = f" on {counted(verdict.hosts, 'host')}" if verdict.hosts > 1 else ""
    parts.append(("ranks", f"{verdict.ranks_seen} of {world}{hosts}"))
    return tuple(parts)


def coverage_line(verdict: JobVerdict) -> str:
    """The same as text; empty where there is nothing."""
    return "     ".join(f"{what}  {much}" for what, much in coverage(verdict))


def also(verdict: JobVerdict) -> tuple[str, ...]:
    """A line for each cost that the headline does not tell."""
    return tuple(cost.line for cost in verdict.costs if cost.line and cost.line != verdict.headline)


def tree_rows(parts: Sequence[VerdictPart], depth: int = 0) -> Iterator[tuple[int, VerdictPart]]:
    """The parts of a tree, each with its depth, each above those that it consists of."""
    for each in parts:
        yield depth, each
        yield from tree_rows(each.parts, depth + 1)


def by_rank(part: VerdictPart, *, most: int = MOST_RANKS) -> str:
    """The ranks of a part, where they differ (else empty): each of at most so many, or the least and the most."""
    if len(part.by_rank) > most:
        low, high = (pick(part.by_rank, key=lambda each: each[1]) for pick in (min, max))
        return f"rank {low[0]} {format_duration(low[1])} .. rank {high[0]} {format_duration(high[1])}"
    return ", ".join(f"rank {rank} {format_duration(ns)}" for rank, ns in part.by_rank)


def files_found(evidence: Evidence) -> tuple[tuple[str, str], ...]:
    """(``read`` or ``left out``, ``run2: 8 files of profiler traces, 512 MB``); what was read first.

    Empty where everything in the folder was of one kind and read.
    """
    found = evidence.files_found
    if len({each.kind for each in found}) < 2 and not evidence.unread:
        return ()
    read = [each for each in found if each.left_out is None]
    return tuple(
        (
            "read" if each.left_out is None else "left out",
            (f"{each.job}: " if each.job else "")
            + f"{counted(each.files, 'file')}, {format_bytes(each.bytes)}: {each.kind}"
            + ("" if each.left_out is None else f" ({each.left_out})"),
        )
        for each in (*read, *(each for each in found if each.left_out is not None))
    )

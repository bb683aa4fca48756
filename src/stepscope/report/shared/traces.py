"""What the tables of a trace share: values, names of sets of ranks, figures over many ranks, reasons for gaps."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from stepscope.core.units import format_percent
from stepscope.core.words import grouped, plural, ranges
from stepscope.records.nouns import EXPOSED_COMM_SHORT
from stepscope.records.parts import TITLES
from stepscope.records.trace_budget import Parts, PhaseBudget
from stepscope.records.trace_summary import RankPass, TraceSummary
from stepscope.report.table import (
    Column,
    Tone,
    Value,
    duration,
    judged,
    lead_column,
    percent,
    unknown,
    whole,
    with_share,
)

if TYPE_CHECKING:
    from stepscope.records.trace_rules import LayerCall, UnitCall

T = TypeVar("T")
C = TypeVar("C", "LayerCall", "UnitCall")

MANY = 16
"""From more ranks than this on, tables of one row a rank show those that stand out first."""

EVEN = 1.1
"""The rank with most of something is named from this ratio to the median on."""

NOTHING = "nothing to measure: neither device work nor operators or communication were recorded"

PARTIAL = "only device events were read"


def shared(ns: float, whole: float) -> Value:
    """Return a duration and its share of ``whole``; without a share where ``whole`` is 0."""
    if not whole:
        return duration(ns)
    return with_share(ns, ns / whole)


def who(ranks: Collection[int]) -> str:
    """Write ``rank 3``, ``ranks 0-7``."""
    return f"{plural(len(ranks), 'rank')} {ranges(ranks)}"


def gaps(
    summary: TraceSummary, section: str, has: Callable[[RankPass], bool] | None = None, *, otherwise: str
) -> tuple[str, ...]:
    """Return one line for each reason why ranks have nothing to show in a section; ``otherwise`` without a recorded one.

    has: whether a rank has something; None: by the field of the section's name, and its rows.
    """
    has = has or (lambda rank_pass: bool(getattr(getattr(rank_pass, section), "rows", getattr(rank_pass, section))))
    ranks_by_reason: dict[str, list[int]] = defaultdict(list)
    for rank in summary.ranks:
        if not has(rank):
            recorded = next((m.reason for m in rank.unavailable if m.section == section), None)
            instead = rank.unread or NOTHING if rank.budget is None else PARTIAL if rank.partial else otherwise
            ranks_by_reason[recorded or instead].append(rank.facts.rank)
    return by_ranks(summary, ranks_by_reason)


def by_ranks(summary: TraceSummary, ranks_by_text: Mapping[str, Sequence[int]]) -> tuple[str, ...]:
    """Return each text once, with the ranks it holds for unless it holds for all."""
    return tuple(
        text if len(ranks) == len(summary.ranks) else f"{who(ranks)}: {text}" for text, ranks in ranks_by_text.items()
    )


def over_ranks(rows: Iterable[T], key: Callable[[T], object], time: Callable[[T], float]) -> list[list[T]]:
    """Group rows of several ranks by what they are about, most time first."""
    return sorted(grouped(rows, key).values(), key=lambda same: -sum(map(time, same)))


def time_over_ranks(
    rows: Iterable[Any], field: str, whole: float, *, worry: tuple[float, float] | None = None
) -> Value:
    """Return the median of a time over the rows of one thing on several ranks, with the share of ``whole`` they all take."""
    rows = list(rows)
    share = sum(getattr(row, field) for row in rows) / whole if whole else 0.0
    return with_share(middle(rows, field) or 0.0, share, "plain" if worry is None else judged(share, *worry))


def standing_out(rows: Sequence[T], key: Callable[[T], float]) -> Sequence[T]:
    """Return ``rows`` as they are; when they are many, with those of the largest ``key`` first."""
    return rows if len(rows) <= MANY else sorted(rows, key=key, reverse=True)


def many_note(count: int, first: str) -> tuple[str, ...]:
    """Say how a table of many ranks is ordered; nothing for a few."""
    return (f"{count} ranks, {first} first",) if count > MANY else ()


def median_over(values: Mapping[int, float]) -> float:
    """Return the median over the ranks that have a value; 0 without any."""
    return statistics.median(values.values()) if values else 0.0


def middle(rows: Iterable[Any], field: str) -> float | None:
    """Return the median of a field over the rows of one thing on several ranks; None where it is known of none."""
    values = [value for row in rows if (value := getattr(row, field)) is not None]
    return statistics.median(values) if values else None


def medians(field: str) -> Callable[[Iterable[Any]], float | None]:
    """Return :func:`middle` of that field."""
    return lambda rows: middle(rows, field)


def median_a_step(calls: Iterable[tuple[int, C]], of: Callable[[C], int | None]) -> float | None:
    """Sum over the calls of a step and return the median over ranks and steps; None where no call has it.

    calls: (rank, call).
    """
    sums: dict[tuple[int, int | None], int] = defaultdict(int)
    for rank, call in calls:
        if (value := of(call)) is not None:
            sums[rank, call.step] += value
    return statistics.median(sums.values()) if sums else None


def step_counts(called: Iterable[Any]) -> dict[int, int]:
    """Return how many steps the calls of each rank are of, at least 1.

    called: what has ``rank`` and ``calls`` with ``step``.
    """
    return {row.rank: max(1, len({call.step for call in row.calls})) for row in called}


def step_length(summary: TraceSummary, steps: Mapping[int, int]) -> int:
    """Return the window of a rank divided by its steps, median over ranks, ns. steps: rank -> their number."""
    of_ranks = summary.windows_ns
    return int(median_over({rank: of_ranks[rank] / count for rank, count in steps.items()}))


def exposed_a_step(calls: Iterable[tuple[int, C]], step_ns: int) -> Value:
    """Return the exposed time a step, and its share of ``step_ns``."""
    return timed(median_a_step(calls, lambda call: call.exposed_ns) or 0, step_ns, worry=(0.05, 0.15))


def most(values: Mapping[int, float], ranks: Sequence[int]) -> Value:
    """Return the rank with the largest value where it stands out: ``rank 7 1.3x`` the median. Raw: the rank.

    Where not all ``ranks`` have a value: how many do.
    """
    if len(ranks) < 2 or not any(values.values()):
        return unknown()
    rank = max(values, key=lambda r: (values[r], -r))
    if len(values) == 1:
        return Value(f"rank {rank} only", rank)
    if len(values) < len(ranks):
        return Value(f"on {len(values)} of {len(ranks)}", rank)
    median = median_over(values)
    if not median:
        return Value(f"rank {rank}", rank, tone="warn")
    ratio = values[rank] / median
    if ratio < EVEN:
        return Value("even", rank, tone="dim")
    tone: Tone = "warn" if ratio >= 1.5 else "plain"
    return Value(f"rank {rank} {ratio:.1f}x" if ratio < 100 else f"rank {rank}", rank, tone=tone)


def most_column(ranks: Sequence[int], of: Callable[[Any], float], **how: Any) -> Column:
    """Return the column of :func:`most`. of: a row of one rank -> its value."""
    return Column("largest_rank", "most", lambda rows: most({row.rank: of(row) for row in rows}, ranks), **how)


def over_ranks_note(ranks: Sequence[int]) -> tuple[str, ...]:
    """Say how to read figures over several ranks; nothing for one."""
    if len(ranks) < 2:
        return ()
    return (
        f"medians over {len(ranks)} ranks, shares over all; most: the rank with the largest, against the "
        "median; --rank N shows one rank alone",
    )


def rank_column(get: Callable[[Any], int]) -> Column:
    """Return the column that says which rank a row is of."""
    return lead_column("rank", "rank", get, whole)


def parts_columns(of: Callable[[Any], Parts]) -> tuple[Column, ...]:
    """Return the columns of a budget: times with their share of the window. of: a row's item -> its parts."""

    return (
        Column("window", "window", lambda item: of(item).window_ns, duration),
        *device_columns(of, lambda item: of(item).window_ns, comm=(0.1, 0.25), copies=(0.05, 0.15), idle=(0.15, 0.35)),
        Column("hidden_fraction", "hidden", lambda item: of(item).hidden_fraction, percent, drop=3),
    )


def device_columns(
    of: Callable[[Any], Parts | PhaseBudget],
    window_ns: Callable[[Any], float],
    **worry: tuple[float, float],
) -> tuple[Column, ...]:
    """Return the columns of what the device did. of, window_ns: a row's item -> its parts, and what they are shares of."""

    def part(name: str, kind: str = "") -> Callable[[Any], Value]:
        return lambda item: timed(getattr(of(item), name), window_ns(item), worry=worry.get(kind))

    return (
        Column("compute", "compute", part("compute_ns"), duration),
        Column("exposed_comm", EXPOSED_COMM_SHORT, part("exposed_comm_ns", "comm"), duration, short="exp comm"),
        Column(
            "exposed_memory",
            TITLES["copies"],
            part("exposed_memory_ns", "copies"),
            duration,
            short="exp copies",
            drop=1,
        ),
        Column("idle", "idle", part("idle_ns", "idle"), duration),
        Column("comm", "all comm", lambda item: of(item).comm_ns, duration, drop=2),
    )


def timed(ns: float, window_ns: float, *, worry: tuple[float, float] | None = None) -> Value:
    """Return a duration and its share of the window; from ``worry`` on in yellow and red."""
    share = ns / window_ns if window_ns else 0.0
    tone = "plain" if worry is None else judged(share, *worry)
    return replace(with_share(ns, share, tone), compact=format_percent(share))

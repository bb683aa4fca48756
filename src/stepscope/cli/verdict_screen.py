"""The first screen: the verdict in three lines, then where a step's time goes, then what else costs time."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterable

from stepscope.cli.console import out, say
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.verdict import Verdict, VerdictPart

WIDEST = 100
MOST_RANKS = 8
_GRAVE = ("crash", "killed", "hang", "no-steps", "contended-machine")


def show_verdict(verdict: Verdict) -> None:
    """Three lines, the tree, the other costs, what the figures rest on."""
    style = "bold green" if verdict.kind == "compute-bound" else "bold red" if verdict.kind in _GRAVE else "bold yellow"
    _wrapped(f"{verdict.headline}.", style)
    say(f"  {_coverage(verdict)}")
    if verdict.advice:
        first = verdict.advice[0]
        _wrapped(first.text, "", first="  next   ", then="         ")
        if first.command:
            say(f"         $ {first.command}", "cyan")
    for cost in verdict.costs[1:]:
        _wrapped(cost.line, "", first="  also   ", then="         ")
    out().print()
    _tree(verdict)
    for line in (*verdict.evidence, *verdict.notes):
        _wrapped(line, "dim", first="  ", then="    ")


def _coverage(verdict: Verdict) -> str:
    parts = []
    if verdict.stake_fraction:
        parts.append(f"stake  up to {1 / max(1 - verdict.stake_fraction, 0.01):.2g}x faster")
    profiled = f", {verdict.steps_profiled} profiled" if verdict.steps_profiled else ""
    parts.append(f"steps  {verdict.steps_timed:,} timed{profiled}")
    world = verdict.world_size or verdict.ranks_seen
    hosts = f" on {counted(verdict.hosts, 'host')}" if verdict.hosts > 1 else ""
    parts.append(f"ranks  {verdict.ranks_seen} of {world}{hosts}")
    return "     ".join(parts)


def _tree(verdict: Verdict) -> None:
    """The parts of a step, each under the one it is a part of."""
    if not verdict.tree:
        return
    rows: list[tuple[str, VerdictPart]] = []

    def add(parts: Iterable[VerdictPart], indent: str) -> None:
        for each in parts:
            rows.append((f"{indent}{each.key}", each))
            add(each.parts, indent + "  ")

    add(verdict.tree, "  ")
    whole = sum(each.ns for each in verdict.tree)
    width = max(len(name) for name, _ in rows) + 2
    say(
        f"  {'a step':<{width}}{format_duration(whole):>9}  100%   mean of {counted(verdict.steps_timed, 'timed step')}"
    )
    for name, each in rows:
        mark = "   <- " + verdict.kind if each.cause else ""
        ranks = "" if not each.by_rank else "   " + _by_rank(each)
        line = f"  {name:<{width}}{format_duration(each.ns):>9} {format_percent(each.share):>5}{ranks}{mark}"
        say(line[:WIDEST], "bold" if each.cause else "")


def _by_rank(part: VerdictPart) -> str:
    if len(part.by_rank) > MOST_RANKS:
        low, high = (pick(part.by_rank, key=lambda each: each[1]) for pick in (min, max))
        return f"rank {low[0]} {format_duration(low[1])} .. rank {high[0]} {format_duration(high[1])}"
    return ", ".join(f"rank {rank} {format_duration(ns)}" for rank, ns in part.by_rank)


def next_commands(folder: str) -> str:
    """Where to look next."""
    where = shlex.quote(folder)
    return f"next: stepscope diagnose {where}; stepscope report {where}"


def _wrapped(text: str, style: str, *, first: str = "", then: str = "") -> None:
    width = min(max(out().width, 40), WIDEST)
    for line in textwrap.wrap(text, width, initial_indent=first, subsequent_indent=then, break_long_words=False):
        say(line, style)

"""The first screen: the verdict in three lines, then where a step's time goes, then what else costs time."""

from __future__ import annotations

import textwrap

from stepscope.cli.console import out, say
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.verdict import JobVerdict
from stepscope.report import verdict_lines

WIDEST = 100
MOST_RANKS = 3
"""Named one by one beside a part: there is room for no more."""
_GRAVE = ("crash", "killed", "hang", "no-steps", "contended-machine")


def show_verdict(verdict: JobVerdict, *, running: bool = False) -> None:
    """Three lines, the tree, the other costs, what the figures rest on. running: the job goes on, and says so."""
    style = "bold green" if verdict.kind == "compute-bound" else "bold red" if verdict.kind in _GRAVE else "bold yellow"
    _wrapped(f"{verdict.headline}.", style)
    rests_on = verdict_lines.coverage_line(verdict)
    if said := "; ".join(filter(None, ("so far: the job still runs" if running else "", rests_on))):
        say(f"  {said}")
    if verdict.advice:
        first = verdict.advice[0]
        _wrapped(first.text, "", first="  next   ", then="         ")
        if first.command:
            say(f"         $ {first.command}", "cyan")
    for line in verdict_lines.also(verdict):
        _wrapped(line, "", first="  also   ", then="         ")
    out().print()
    _tree(verdict)
    for line in (*verdict.evidence, *verdict.notes):
        _wrapped(line, "dim", first="  ", then="    ")


def _tree(verdict: JobVerdict) -> None:
    """The parts of a step, each under the one it is a part of."""
    if not verdict.tree:
        return
    rows = [("  " * (depth + 1) + each.key, each) for depth, each in verdict_lines.rows(verdict.tree)]
    whole = sum(each.ns for each in verdict.tree)
    width = max(len(name) for name, _ in rows) + 2
    say(
        f"  {'a step':<{width}}{format_duration(whole):>9}  100%   mean of {counted(verdict.steps_timed, 'timed step')}"
    )
    for name, each in rows:
        mark = "   <- " + verdict.kind if each.cause else ""
        ranks = "" if not each.by_rank else "   " + verdict_lines.by_rank(each, most=MOST_RANKS)
        line = f"  {name:<{width}}{format_duration(each.ns):>9} {format_percent(each.share):>5}{mark}{ranks}"
        say(line[:WIDEST], "bold" if each.cause else "")


def _wrapped(text: str, style: str, *, first: str = "", then: str = "") -> None:
    width = min(max(out().width, 40), WIDEST)
    for line in textwrap.wrap(text, width, initial_indent=first, subsequent_indent=then, break_long_words=False):
        say(line, style)

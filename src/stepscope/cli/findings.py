"""Tables, findings and the verdict on a terminal or in a pipe."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.cli.console import out, say
from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.finding import Diagnosis, Finding

if TYPE_CHECKING:
    from rich.table import Table as RichTable
    from rich.text import Text

    from stepscope.diagnose.screen import Screen
    from stepscope.report.table import Table
    from stepscope.results.evidence import Evidence


SHOWN_FIGURES = 2
STYLES = {"problem": "bold red", "warning": "bold yellow", "info": "bold green", "good": "bold green"}
"""The style of each severity of a finding, and of each tone of a screen."""


def print_findings(findings: Iterable[Finding], *, confidence: bool = False) -> None:
    """Print each as a block; confidence: also how far the evidence carries."""
    for finding in findings:
        print_finding(finding, confidence=confidence)


def show_runs(evidence: Evidence, diagnosis: Diagnosis, run: Path) -> None:
    """Print the first screen of a run of ours, with its first key figures, above its tables."""
    import shlex

    from stepscope.diagnose.screen import of_runs
    from stepscope.report.page.overview import key_figures

    figures = [
        f"{figure.label}: {figure.value}" + (f" ({figure.note})" if figure.note else "")
        for figure in key_figures(evidence, diagnosis)[:SHOWN_FIGURES]
    ]
    more = f"stepscope diagnose {shlex.quote(str(run))}"
    show_screen(of_runs(evidence, diagnosis, figures=figures, more=more))
    say()


def print_read(evidence: Evidence, *, most: int | None, rest: str = "--all") -> None:
    """Print, after a blank line, what of a folder was read and what was not, notes and remarks; at most so many of each.

    rest: where more of them are.
    """
    from stepscope.diagnose.narrator import files_found

    files = files_found(evidence)
    if files or evidence.all_notes:
        say()
    for state, text in files[:most]:
        _hanging(f"{state:<9} ", text, "dim" if state == "read" else "yellow")
    for mark, sentences, style in (("!", evidence.notes, "yellow"), ("·", evidence.remarks, "dim")):
        for text in sentences[:most]:
            say(f"{mark} {text}", style)
    for all_, what in ((files, "file kind"), (evidence.notes, "note"), (evidence.remarks, "remark")):
        if most is not None and all_[most:]:
            say(f"! {counted(len(all_) - most, f'more {what}')}: {rest}", "yellow")


def print_finding(finding: Finding, *, confidence: bool = False) -> None:
    """Print ``• title``, its evidence below, and after an arrow each thing to do with its command."""
    _hanging("• ", finding.title, STYLES.get(finding.severity, "bold"))
    if finding.subject is not None and finding.subject not in finding.title:
        _hanging("  ", finding.subject, "dim")
    for line in finding.evidence:
        _hanging("    ", line, "")
    if confidence:
        stake = (
            "" if finding.stake_fraction is None else f", up to {format_percent(finding.stake_fraction)} of the step"
        )
        _hanging("    ", f"[{finding.rule}{stake}: {finding.certainty}]", "dim")
    for advice in finding.advice:
        _hanging("    → ", advice.text, "dim")
        if advice.command:  # in one piece: it is there to be pasted
            say(f"      $ {advice.command}", "cyan")


def _hanging(mark: str, text: str, style: str) -> None:
    """Print text after a mark, further lines under its beginning."""
    width = max(out().width, 40)
    wrapped = textwrap.wrap(
        text,
        min(width, 110),
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_long_words=False,
        break_on_hyphens=False,
    )
    for line in wrapped or [mark]:
        say(line, style)


def show_table(table: Table, *, titled: bool = False, width: int | None = None, folded: bool = False) -> None:
    """Print ``table`` on stdout, as wide as that or ``width``.

    titled: under its title. folded: what is too wide is broken here, not by the terminal.
    """
    from stepscope.report.render import terminal

    if titled:
        say(table.title, "bold")
    text = terminal.render(table, width=width or out().width)
    if folded:
        print_block(text)
    else:
        say(text)


def limited(table: Table, limit: int, rest: str) -> Table:
    """Return the first rows of a table, with a note on how many more there are. limit: 0 for all; rest: what shows them."""
    if not limit or len(table.rows) <= limit:
        return table
    more = f"{len(table.rows) - limit} more rows: {rest}"
    return replace(table, rows=table.rows[:limit], notes=(*table.notes[:limit], more))


def plain_table(first: str, *, right: Iterable[str]) -> RichTable:
    """Return a rich table with rules under its titles: keys, and columns of figures."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE, pad_edge=False, show_edge=False, padding=(0, 1))
    table.add_column(first, style="cyan", no_wrap=True)
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def show_facts(facts: Iterable[tuple[str, str | Text]]) -> None:
    """Print a line for each: its label, and its text under those of the others."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="cyan", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, text in facts:
        grid.add_row(Text(f"  {label}"), text if isinstance(text, Text) else Text(text))
    print_block(grid)


def print_block(block: Any) -> None:
    """Print a rich table or grid; into a pipe without the blanks that fill up its last column."""
    console = out()
    if console.is_terminal:
        console.print(block)
        return
    with console.capture() as captured:
        console.print(block)
    lines = (line.rstrip() for line in captured.get().splitlines())
    console.out("\n".join(lines), highlight=False)


def show_screen(screen: Screen, *, everything: bool = False) -> None:
    """Print the first screen on stdout. everything: all notes, however many."""
    from stepscope.report.render.screen import WIDEST, screen_lines

    for line, tone in screen_lines(screen, width=min(max(out().width, 40), WIDEST), everything=everything):
        say(line, STYLES.get(tone, tone))

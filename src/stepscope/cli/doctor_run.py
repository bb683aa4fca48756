"""What ``stepscope doctor`` does: look at the machine, judge, print."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepscope.cli.blocks import print_block, show_table
from stepscope.cli.console import err, log, out, print_document
from stepscope.core.errors import CheckFailed, Unavailable, UsageError
from stepscope.core.grouping import grouped
from stepscope.core.words import plural
from stepscope.machine.collect import collect
from stepscope.machine.judging import topology_of
from stepscope.machine.overview import Section, overview
from stepscope.machine.verdicts import CheckVerdict, doctor_document, judge, tally
from stepscope.records.environment import EnvironmentRecord

if TYPE_CHECKING:
    from stepscope.cli.commands.doctor import Doctor

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def run(options: Doctor) -> int:
    """Look, judge and print. Raises CheckFailed under ``--strict`` when a check fails."""
    if options.ranks is not None:
        raise UsageError("--ranks belongs to --quick", fix="stepscope doctor --quick --ranks N")
    local_rank = os.environ.get("LOCAL_RANK", "0")
    if local_rank != "0":
        log(f"LOCAL_RANK={local_rank}: local rank 0 reports for this host (outside a launcher: unset LOCAL_RANK)", "")
        return 0
    shown = err().status("checking this machine ...") if err().is_terminal and not options.json else nullcontext()
    with shown:
        record = collect(torch_timeout_s=options.torch_timeout)
    verdicts = judge(record)
    if options.json:
        print_document(doctor_document(record, verdicts))
    else:
        _show(out(), record, verdicts)
    broken = [verdict.title for verdict in verdicts if verdict.outcome.status == "fail"]
    if options.strict and broken:
        raise CheckFailed(
            f"{tally(verdicts)['fail']} failed: {', '.join(broken)}",
            fix="follow the fix lines above, or drop --strict",
        )
    return 0


def _show(console: Console, record: EnvironmentRecord, verdicts: tuple[CheckVerdict, ...]) -> None:
    _show_verdict(console, verdicts)
    for section in overview(record):
        _show_facts(console, section)
        if section.title == "links":
            topology = topology_of(record)
            if not isinstance(topology, Unavailable) and len(topology.gpus) > 1:
                from stepscope.report.views import topology as matrix

                show_table(matrix.build(topology), folded=True)
        console.print()
    console.print(Text("checks", style="bold"))
    show_verdicts(console, verdicts)


def _show_verdict(console: Console, verdicts: tuple[CheckVerdict, ...]) -> None:
    counts = tally(verdicts)
    warnings = plural(counts["warn"], "warning")
    words = (("pass", "passed"), ("warn", warnings), ("fail", "failed"), ("skip", "skipped"))
    parts = [Text(f"{counts[key]} {word}", style=_STYLES[key] if counts[key] else "dim") for key, word in words]
    console.print(Text(", ").join(parts))
    console.print()


def _show_facts(console: Console, section: Section) -> None:

    console.print(Text(section.title, style="bold"))
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, style="cyan")
    grid.add_column(overflow="fold")
    for line in section.lines:
        grid.add_row(
            Text(f"  {line.label}"),
            Text(line.text if line.known else f"unknown: {line.text}", style="" if line.known else "dim"),
        )
    print_block(console, grid)


def show_verdicts(console: Console, verdicts: Sequence[CheckVerdict]) -> None:
    """A line each, and its fix below; what was skipped last, once for each reason."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, style="cyan")
    grid.add_column(overflow="fold")
    for verdict in verdicts:
        outcome = verdict.outcome
        if outcome.status == "skip":
            continue
        grid.add_row(_mark(outcome.status.value), Text(verdict.title), Text(outcome.message))
        if outcome.fix:
            grid.add_row(Text(""), Text(""), Text(f"fix: {outcome.fix}", style="italic"))
    skipped = grouped((v for v in verdicts if v.outcome.status == "skip"), lambda verdict: verdict.outcome.message)
    for reason, same in skipped.items():
        titles = [verdict.title for verdict in same]
        alone = len(titles) == 1
        title = titles[0] if alone else f"{len(titles)} checks"
        text = reason if alone else f"{reason} ({', '.join(titles)})"
        grid.add_row(_mark("skip"), Text(title, style="dim"), Text(text, style="dim"))
    print_block(console, grid)


def _mark(status: str) -> Text:
    return Text(f"  {status.upper()}", style=_STYLES[status])

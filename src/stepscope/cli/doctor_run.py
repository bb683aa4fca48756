"""What ``stepscope doctor`` does: look at the machine, or train for some seconds (``--quick``); judge, print."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from rich.table import Table as Grid
from rich.text import Text

from stepscope.cli.console import err, log, print_document, say
from stepscope.cli.findings import print_block, show_facts, show_table
from stepscope.cli.host_options import asked_hosts
from stepscope.core.errors import CheckFailed, Unavailable, UsageError
from stepscope.core.forks import stop_signals_raise
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted, grouped, plural
from stepscope.launch.hosts.tasks import nodes_of
from stepscope.launch.join import world_environ
from stepscope.launch.torchrun import require_torch
from stepscope.machine.collect import collect
from stepscope.machine.judging import topology_of
from stepscope.machine.overview import overview
from stepscope.machine.verdicts import CheckVerdict, doctor_document, judge, tally
from stepscope.matrix.quick_check import QuickCheck, quick_check, rank_figures, summary
from stepscope.matrix.runner import OnEvent
from stepscope.matrix.work import CellMoved, Event, GroupStarted
from stepscope.records import codec
from stepscope.records.environment import EnvironmentRecord
from stepscope.report.table import Column, Table, Value, duration, identity_column, lead_column, tabled, whole, wording
from stepscope.stats.compare import MIN_EXCESS

if TYPE_CHECKING:
    from stepscope.cli.commands.doctor import Doctor


_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


def run(options: Doctor) -> int:
    """Look, judge and print. Raises CheckFailed under ``--strict`` when a check fails."""
    if options.ranks is not None:
        raise UsageError("--ranks belongs to --quick", fix="stepscope doctor --quick --ranks N")
    asked_hosts(options, against={})  # --ssh without --hosts
    local_rank = world_environ(os.environ).get("LOCAL_RANK", "0")
    if local_rank != "0":
        log(f"LOCAL_RANK={local_rank}: local rank 0 reports for this host (outside a launcher: unset LOCAL_RANK)", "")
        return 0
    environ = world_environ(os.environ)
    if (nodes := nodes_of(environ)) > 1 and environ.get("MASTER_ADDR") and environ.get("MASTER_PORT", "").isdigit():
        from stepscope.cli.doctor_hosts import run_tasks

        return run_tasks(options, nodes)
    shown = err().status("checking this machine ...") if err().is_terminal and not options.json else nullcontext()
    with shown:
        record = collect(torch_timeout_s=options.torch_timeout)
    verdicts = judge(record)
    if options.json:
        print_document(doctor_document(record, verdicts))
    else:
        _show(record, verdicts)
    broken = [verdict.title for verdict in verdicts if verdict.outcome.status == "fail"]
    if options.strict and broken:
        raise CheckFailed(
            f"{tally(verdicts)['fail']} failed: {', '.join(broken)}", fix="follow the fix lines above, or drop --strict"
        )
    return 0


def _show(record: EnvironmentRecord, verdicts: tuple[CheckVerdict, ...]) -> None:
    _show_verdict(verdicts)
    for section in overview(record):
        say(section.title, "bold")
        lines = ((line.label, line.text, line.recorded) for line in section.lines)
        show_facts(
            (label, text if is_known else Text(f"unknown: {text}", style="dim")) for label, text, is_known in lines
        )
        if section.title == "links":
            topology = topology_of(record)
            if not isinstance(topology, Unavailable) and len(topology.gpus) > 1:
                from stepscope.report.views import links as matrix

                show_table(matrix.topology_table(topology), folded=True)
        say()
    say("checks", "bold")
    show_verdicts(verdicts)


def _show_verdict(verdicts: tuple[CheckVerdict, ...]) -> None:
    counts = tally(verdicts)
    warnings = plural(counts["warn"], "warning")
    words = (("pass", "passed"), ("warn", warnings), ("fail", "failed"), ("skip", "skipped"))
    parts = [Text(f"{counts[key]} {word}", style=_STYLES[key] if counts[key] else "dim") for key, word in words]
    say(Text(", ").join(parts))
    say()


def show_verdicts(verdicts: Sequence[CheckVerdict]) -> None:
    """Print a line each, and its fix below; what was skipped last, once for each reason."""
    grid = Grid.grid(padding=(0, 2))
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
    print_block(grid)


def _mark(status: str) -> Text:
    return Text(f"  {status.upper()}", style=_STYLES[status])


def run_quick(options: Doctor) -> int:
    """Check, print, and raise CheckFailed under ``--strict`` when something is broken."""
    asked_hosts(options, against={})
    require_torch()
    with stop_signals_raise("interrupted; nothing is left behind"), _on_screen(json=options.json) as show:
        check = quick_check(ranks=options.ranks, torch_timeout_s=options.torch_timeout, show=show)
    if options.json:
        print_document(document(check))
    else:
        _print(check)
    if options.strict and check.broken:
        raise CheckFailed(
            "; ".join(f"{v.title}: {v.outcome.message}" for v in check.broken),
            fix="follow the fix lines above, or drop --strict",
        )
    return 0


def document(check: QuickCheck) -> dict[str, Any]:
    """Return the document of ``doctor --quick --json``: schema stepscope.doctor_quick/1."""
    run_quick, times, collective = check.cell.run, check.times, check.collective
    return {
        **codec.headed("doctor_quick/1"),
        "healthy": not check.broken,
        "world_size": run_quick.world_size,
        "device": run_quick.device,
        "backend": run_quick.backend,
        "model": check.cell.run.model,
        "steps": None if run_quick.step_ns is None else run_quick.step_ns.n,
        "step_ns_median": None if run_quick.step_ns is None else run_quick.step_ns.value,
        "wall_ns": check.wall_ns,
        "collective": None
        if collective is None
        else {
            "op": collective.op,
            "size_bytes": collective.size_bytes,
            "time_ns_median": collective.time_ns,
            "time_ns_p90": collective.p90_ns,
            "busbw_bytes_per_s": collective.busbw_bytes_per_s,
        },
        "ranks": [rank_figures(check, rank) for rank in range(check.cell.spec.world_size)] if times is not None else [],
        "checks": [
            {"title": v.title, "status": v.outcome.status.value, "message": v.outcome.message, "fix": v.outcome.fix}
            for v in check.verdicts
        ],
    }


def _print(check: QuickCheck) -> None:
    spec = check.cell.spec
    say(
        f"{check.cell.run.model}, {counted(spec.world_size, 'rank')} on {spec.device}/{spec.backend}, "
        f"{format_duration(check.wall_ns)} in all\n"
    )
    if check.times is not None:
        show_table(_table(check))
        say()
    show_verdicts(check.verdicts)
    say(f"\n{summary(check)}")


def _table(check: QuickCheck) -> Table:
    def excess(facts: dict[str, Any]) -> Value:
        share = facts["excess_fraction"]
        return wording(
            format_percent(share, digits=1, signed=True), share, tone="warn" if share > MIN_EXCESS else "plain"
        )

    return tabled(
        "quick_check",
        "Ranks",
        ((rank, rank_figures(check, rank)) for rank in range(check.cell.spec.world_size)),
        lead_column("rank", "rank", "0", whole),
        identity_column("host", "host", lambda row: row[1]["host"]),
        identity_column("device", "device", lambda row: row[1]["device"] or "?", drop=1),
        Column("own_ns", "own time", lambda row: row[1]["own_ns_median"], duration),
        Column("own_p90_ns", "p90", lambda row: row[1]["own_ns_p90"], duration, drop=2),
        Column("excess", "against others", lambda row: excess(row[1]), whole),
        Column("waiting_ns", "waits", lambda row: row[1]["waiting_ns_median"], duration),
        footnotes=("own time: the step before the all-reduce; waits: for the rank that comes last; medians of steps",),
    )


@contextmanager
def _on_screen(*, json: bool) -> Iterator[OnEvent]:
    """Show one line that says what happens, on a terminal; nothing elsewhere."""
    if json or not err().is_terminal:
        yield lambda event: None  # noqa: ARG005
        return
    with err().status("checking this machine ...") as status:

        def show(event: Event) -> None:
            if isinstance(event, GroupStarted):
                status.update(f"starting {counted(event.world_size, 'rank')} ...")
            elif isinstance(event, CellMoved):
                status.update(f"{event.phase}: step {event.step}")

        yield show

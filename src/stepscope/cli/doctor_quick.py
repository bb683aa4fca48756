"""What ``stepscope doctor --quick`` does: check, print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from stepscope.cli.blocks import show_table
from stepscope.cli.console import err, out, print_document, say
from stepscope.cli.doctor_run import show_verdicts
from stepscope.core.errors import CheckFailed
from stepscope.core.signals import stop_signals_raise
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.launch.torchrun import require_torch
from stepscope.matrix.events import CellMoved, Event, GroupStarted
from stepscope.matrix.quick_check import QuickCheck, quick_check, rank_figures, summary
from stepscope.matrix.runner import OnEvent
from stepscope.records import codec
from stepscope.report.table import Column, Table, Value, duration, said, tabled, whole
from stepscope.stats.excess import MIN_EXCESS

if TYPE_CHECKING:
    from stepscope.cli.commands.doctor import Doctor


def run(options: Doctor) -> int:
    """Check, print, and raise CheckFailed under ``--strict`` when something is broken."""
    require_torch()
    with stop_signals_raise("interrupted; nothing is left behind"), _on_screen(json=options.json) as show:
        found = quick_check(ranks=options.ranks, torch_timeout_s=options.torch_timeout, show=show)
    if options.json:
        print_document(document(found))
    else:
        _print(found)
    if options.strict and found.broken:
        raise CheckFailed(
            "; ".join(f"{v.title}: {v.outcome.message}" for v in found.broken),
            fix="follow the fix lines above, or drop --strict",
        )
    return 0


def document(found: QuickCheck) -> dict[str, Any]:
    """``doctor --quick --json``: schema stepscope.doctor_quick/1."""
    run, times, collective = found.cell.run, found.times, found.collective
    return {
        **codec.headed("doctor_quick/1"),
        "healthy": not found.broken,
        "world_size": run.world_size,
        "device": run.device,
        "backend": run.backend,
        "model": found.cell.run.model,
        "steps": None if run.step_ns is None else run.step_ns.n,
        "step_ns_median": None if run.step_ns is None else run.step_ns.value,
        "wall_ns": found.wall_ns,
        "collective": None
        if collective is None
        else {
            "op": collective.op,
            "size_bytes": collective.size_bytes,
            "time_ns_median": collective.time_ns,
            "time_ns_p90": collective.p90_ns,
            "busbw_bytes_per_s": collective.busbw_bytes_per_s,
        },
        "ranks": [rank_figures(found, rank) for rank in range(found.cell.spec.world_size)] if times is not None else [],
        "checks": [
            {"title": v.title, "status": v.outcome.status.value, "message": v.outcome.message, "fix": v.outcome.fix}
            for v in found.verdicts
        ],
    }


def _print(found: QuickCheck) -> None:
    console, spec = out(), found.cell.spec
    say(
        f"{found.cell.run.model}, {counted(spec.world_size, 'rank')} on {spec.device}/{spec.backend}, "
        f"{format_duration(found.wall_ns)} in all\n"
    )
    if found.times is not None:
        show_table(_table(found))
        console.print()
    show_verdicts(console, found.verdicts)
    say(f"\n{summary(found)}")


def _table(found: QuickCheck) -> Table:
    def excess(facts: dict[str, Any]) -> Value:
        share = facts["excess_fraction"]
        return said(format_percent(share, digits=1, signed=True), share, tone="warn" if share > MIN_EXCESS else "plain")

    return tabled(
        "quick_check",
        "Ranks",
        (
            Column("rank", "rank", lambda each: each[0], whole, role="identity", lead=True),
            Column("host", "host", lambda each: each[1]["host"], role="identity"),
            Column("device", "device", lambda each: each[1]["device"] or "?", role="identity", drop=1),
            Column("own_ns", "own time", lambda each: each[1]["own_ns_median"], duration),
            Column("own_p90_ns", "p90", lambda each: each[1]["own_ns_p90"], duration, drop=2),
            Column("excess", "against others", lambda each: excess(each[1]), whole),
            Column("waiting_ns", "waits", lambda each: each[1]["waiting_ns_median"], duration),
        ),
        ((rank, rank_figures(found, rank)) for rank in range(found.cell.spec.world_size)),
        footnotes=("own time: the step before the all-reduce; waits: for the rank that comes last; medians of steps",),
    )


@contextmanager
def _on_screen(*, json: bool) -> Iterator[OnEvent]:
    """One line that says what happens, on a terminal; nothing elsewhere."""
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

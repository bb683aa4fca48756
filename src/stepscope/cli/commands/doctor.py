"""``stepscope doctor``: what this machine is and what stands in the way of training on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli.command import Command, Options
from stepscope.core.errors import CheckFailed, Unavailable, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.environment.overview import Section
    from stepscope.environment.topology import Topology
    from stepscope.environment.verdicts import CheckVerdict
    from stepscope.records.environment import EnvironmentRecord

_STYLES = {"pass": "green", "warn": "yellow", "fail": "bold red", "skip": "dim"}


class Doctor(Options):
    """The command line of ``stepscope doctor``."""

    json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 6 when a check fails.")] = False
    torch_timeout: Annotated[
        float, typer.Option(help="Seconds that importing torch may take.", metavar="SECONDS", min=1)
    ] = 60.0
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            help="Train for a few seconds instead: own time of every rank, stragglers, the collective.",
        ),
    ] = False
    ranks: Annotated[
        int | None,
        typer.Option(help="Ranks of --quick; without it all GPUs, or 2 on the CPU.", metavar="N", min=1),
    ] = None


def doctor(options: Doctor) -> None:
    """Look at this machine: torch, GPUs, links, network, launcher; PASS, WARN, FAIL or SKIP for each check.

    Every WARN and FAIL comes with a fix. A machine without a GPU is a normal machine: those checks are skipped.
    Under a launcher, local rank 0 reports for its host. --quick trains for some seconds and takes under half a minute.
    """
    from os import environ

    if options.quick:
        from stepscope.cli.doctor_quick import run_quick

        run_quick(options)
        return
    if options.ranks is not None:
        raise UsageError("--ranks belongs to --quick", fix="stepscope doctor --quick --ranks N")

    from stepscope.cli.console import err, out, print_json
    from stepscope.environment.collect import collect
    from stepscope.environment.verdicts import judge, tally

    local_rank = environ.get("LOCAL_RANK", "0")
    if local_rank != "0":
        err().print(
            f"LOCAL_RANK={local_rank}: local rank 0 reports for this host (outside a launcher: unset LOCAL_RANK)",
            markup=False,
            soft_wrap=True,
        )
        return
    if err().is_terminal and not options.json:
        with err().status("looking at this machine ..."):
            record = collect(torch_timeout_s=options.torch_timeout)
    else:
        record = collect(torch_timeout_s=options.torch_timeout)
    verdicts = judge(record)
    if options.json:
        from json import dumps

        print_json(dumps(document(record, verdicts), indent=2, ensure_ascii=False))
    else:
        _show(out(), record, verdicts)
    broken = [verdict.title for verdict in verdicts if verdict.outcome.status == "fail"]
    if options.strict and broken:
        raise CheckFailed(
            f"{tally(verdicts)['fail']} failed: {', '.join(broken)}",
            fix="follow the fix lines above, or drop --strict",
        )


def document(record: EnvironmentRecord, verdicts: tuple[CheckVerdict, ...]) -> dict[str, Any]:
    """``doctor --json``: schema stepscope.doctor/1."""
    from stepscope import __version__
    from stepscope.core.clock import utc_now
    from stepscope.environment.checks import topology_of
    from stepscope.environment.checks.gpu_links import nvlinks_per_gpu
    from stepscope.environment.verdicts import tally
    from stepscope.records.codec import to_builtins

    topology = topology_of(record)
    return {
        "schema": "stepscope.doctor/1",
        "tool_version": __version__,
        "created": utc_now(),
        "environment": to_builtins(record),
        "links": None if isinstance(topology, Unavailable) else links_document(topology, nvlinks_per_gpu(record)),
        "checks": [
            {
                "key": verdict.key,
                "section": verdict.section,
                "title": verdict.title,
                "status": verdict.outcome.status.value,
                "message": verdict.outcome.message,
                "fix": verdict.outcome.fix,
            }
            for verdict in verdicts
        ],
        "summary": dict(tally(verdicts)),
    }


def links_document(topology: Topology, links_per_gpu: int | None) -> dict[str, Any]:
    """The parsed link matrix; unknown links are null."""
    from stepscope.environment.topology import has_nvswitch

    def pair(a: str, b: str) -> dict[str, Any]:
        link = topology.link(a, b)
        return {
            "a": a,
            "b": b,
            "kind": link.kind if link else None,
            "nvlinks": link.nvlinks if link else None,
        }

    gpus, nics = topology.gpus, topology.nics
    return {
        "gpus": [
            {
                "name": gpu.name,
                "cpu_affinity": gpu.cpu_affinity,
                "numa_affinity": gpu.numa_affinity,
                "nearest_nics": topology.nearest_nics(gpu.name),
            }
            for gpu in gpus
        ],
        "nics": [{"name": nic.name, "device": nic.label or nic.name} for nic in nics],
        "gpu_pairs": [pair(a, b) for a, b in topology.gpu_pairs()],
        "gpu_nic_pairs": [pair(gpu.name, nic.name) for gpu in gpus for nic in nics],
        "fast_pairs": topology.fast_pairs(),
        "socket_crossing_pairs": topology.socket_crossing_pairs(),
        "nvlink_islands": topology.nvlink_islands(),
        "nvswitch": has_nvswitch(topology, links_per_gpu=links_per_gpu),
        "problems": topology.problems,
    }


def _show(console: Console, record: EnvironmentRecord, verdicts: tuple[CheckVerdict, ...]) -> None:
    from stepscope.environment.checks import topology_of
    from stepscope.environment.overview import overview

    for section in overview(record):
        _show_facts(console, section)
        if section.title == "links":
            topology = topology_of(record)
            if not isinstance(topology, Unavailable) and len(topology.gpus) > 1:
                _show_matrix(console, topology)
        console.print()
    _show_checks(console, verdicts)


def _show_facts(console: Console, section: Section) -> None:
    from rich.table import Table
    from rich.text import Text

    from stepscope.cli.blocks import print_block

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


def _show_matrix(console: Console, topology: Topology) -> None:
    """GPU to GPU; columns without the word GPU so that eight of them fit a narrow terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from stepscope.cli.blocks import print_block

    table = Table(box=box.SIMPLE, pad_edge=False, padding=(0, 1), show_edge=False)
    table.add_column("  ", style="cyan", no_wrap=True)
    for gpu in topology.gpus:
        table.add_column(gpu.name.removeprefix("GPU"), justify="right", no_wrap=True)
    for row in topology.gpus:
        cells = [Text(f"  {row.name}")]
        for column in topology.gpus:
            link = topology.link(row.name, column.name)
            if row is column:
                cells.append(Text("·", style="dim"))
            elif link is None:
                cells.append(Text("?", style="red"))
            else:
                style = "green" if link.is_nvlink else "yellow" if link.crosses_socket else ""
                cells.append(Text(link.label, style=style))
        table.add_row(*cells)
    print_block(console, table)


def _show_checks(console: Console, verdicts: tuple[CheckVerdict, ...]) -> None:
    from rich.table import Table
    from rich.text import Text

    from stepscope.cli.blocks import print_block
    from stepscope.core.words import plural
    from stepscope.environment.verdicts import tally

    console.print(Text("checks", style="bold"))
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
    for reason, titles in _skipped(verdicts).items():
        alone = len(titles) == 1
        title = titles[0] if alone else f"{len(titles)} checks"
        text = reason if alone else f"{reason} ({', '.join(titles)})"
        grid.add_row(_mark("skip"), Text(title, style="dim"), Text(text, style="dim"))
    print_block(console, grid)
    counts = tally(verdicts)
    console.print()
    warnings = plural(counts["warn"], "warning")
    words = (("pass", "passed"), ("warn", warnings), ("fail", "failed"), ("skip", "skipped"))
    parts = [Text(f"{counts[key]} {word}", style=_STYLES[key] if counts[key] else "dim") for key, word in words]
    console.print(Text(", ").join(parts))


def _mark(status: str) -> Any:
    from rich.text import Text

    return Text(f"  {status.upper()}", style=_STYLES[status])


def _skipped(verdicts: tuple[CheckVerdict, ...]) -> dict[str, list[str]]:
    """Reason -> titles of the checks that were skipped for it."""
    groups: dict[str, list[str]] = {}
    for verdict in verdicts:
        if verdict.outcome.status == "skip":
            groups.setdefault(verdict.outcome.message, []).append(verdict.title)
    return groups


COMMAND = Command(run=doctor, options=Doctor, panel="Look at a machine")

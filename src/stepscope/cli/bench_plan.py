"""What ``bench`` shows beside one table: presets, the resolved matrix, the plan; a sweep or sections as one document."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.cli.comm_run import run as run_comm
from stepscope.cli.commands.comm import Comm
from stepscope.cli.console import log, print_document, say
from stepscope.cli.findings import print_block, print_findings, show_runs, show_table
from stepscope.cli.progress import run_and_show
from stepscope.core.errors import ExitCode, Interrupted, UsageError
from stepscope.core.units import format_bytes, format_count, format_duration
from stepscope.core.words import counted, grouped
from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.narrator import remainder, shown
from stepscope.launch.join import joined_world
from stepscope.matrix.expand import PlannedCell
from stepscope.matrix.load import list_presets, load_matrix, matrix_yaml
from stepscope.matrix.overrides import Override, Shortcut
from stepscope.matrix.run_folder import default_run_dir, exit_code
from stepscope.matrix.session import Outlook, ReadyMatrix, derive_results, outlook
from stepscope.matrix.work import RunRequest
from stepscope.records import codec
from stepscope.records.codec import encode_document
from stepscope.records.finding import Diagnosis
from stepscope.records.injection import parse_injection
from stepscope.records.network import parse_network
from stepscope.records.plan import MemoryPlan
from stepscope.report.summary import suite_document, suite_tables, write_summary
from stepscope.results.labels import cell_labels, status_label
from stepscope.results.open import load_evidence
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_run
from stepscope.store.writer import write_bytes
from stepscope.store.yaml_loader import Document

if TYPE_CHECKING:
    from stepscope.cli.commands.bench import Bench


def overrides(options: Bench) -> list[Override]:
    """Return ``--set`` and its short forms as changes to the matrix; a fixed number of steps takes the place of epochs."""
    changes: list[Override] = [*options.set_]
    if options.warmup is not None:
        changes.append(Shortcut("--warmup", options.warmup, "measure.warmup"))
    if options.steps is not None:
        changes += ["base.epochs=null", Shortcut("--steps", options.steps, "base.steps")]
    if options.emulate_network is not None:
        changes.append(Shortcut("--emulate-network", str(parse_network(options.emulate_network)), "base.network"))
    if options.inject:
        changes.append(Shortcut("--inject", str(parse_injection(",".join(options.inject))), "base.inject"))
    return changes


def share(text: str | None) -> tuple[int, int] | None:
    """Read ``2/8`` of --share as (2, 8). Raises UsageError."""
    if text is None:
        return None
    part, slash, number = text.partition("/")
    if not (slash and part.isdecimal() and number.isdecimal() and 1 <= int(part) <= int(number)):
        raise UsageError(f"--share {text!r}: expected a part and the number of parts, such as --share 2/8")
    return int(part), int(number)


def print_presets(*, json: bool) -> int:
    presets = list_presets()
    if json:
        listed = [{"name": name, "description": description} for name, description in presets.items()]
        print_document({**codec.headed("presets/1"), "presets": listed})
        return 0
    width = max(map(len, presets))
    for name, description in presets.items():
        say(f"{name:<{width}}  {description}")
    say("\nrun one:  stepscope bench --preset NAME      see it:  stepscope bench --preset NAME --show")
    return 0


def print_matrix(source: Path | str | Document, *, overrides: Sequence[Override]) -> int:
    print(matrix_yaml(load_matrix(source, overrides=overrides)), end="")
    return 0


def print_plan(plan: ReadyMatrix, options: Bench) -> int:
    """Print the cells in order, what each sends, which are kept from before, and how long the others may take."""
    profiled = options.profile or options.tensorboard is not None or plan.matrix.measure.profile
    ahead = outlook(
        plan,
        RunLayout(options.output or default_run_dir(plan.matrix.name)),
        profile=profiled,
        rerun=options.rerun_words,
        force=options.force,
    )
    expected = ahead.estimate
    if options.json:
        durations = {cell.cell_id: cell.duration_ns for cell in expected.cells}
        document = {
            **codec.headed("plan/1"),
            "total_ns": expected.total_ns,
            "upper_bound": expected.upper_bound,
            "profiled": profiled,
            "comm": None if plan.comm is None else plan.comm.as_dict(),
            "cells": [
                {
                    "spec": codec.to_builtins(cell.spec),
                    "num_parameters": None if cell.facts is None else cell.facts.num_parameters,
                    "comm_plan": codec.to_builtins(cell.comm_plan),
                    "memory_plan": None if cell.memory_plan is None else codec.to_builtins(cell.memory_plan),
                    "unsupported": cell.unsupported,
                    "skipped": cell.skipped,
                    "kept": ahead.kept[cell.spec.cell_id].status if cell.spec.cell_id in ahead.kept else None,
                    "measured_again": cell.spec.cell_id in ahead.again | ahead.rerun,
                    "estimate_ns": durations.get(cell.spec.cell_id),
                }
                for cell in plan.cells
            ],
        }
        print_document(document)
        return 0
    if plan.cells:
        _print_cells(plan, options, ahead, profiled=profiled)
    if plan.comm is not None:
        then = "then collectives" if plan.cells else "collectives"
        say(f"{then}: {plan.comm.ops}{', pairs' if plan.comm.pairs else ''}, sizes {plan.comm.sizes}")
    return 0


def _print_cells(plan: ReadyMatrix, options: Bench, ahead: Outlook, *, profiled: bool) -> None:
    from rich.table import Table

    expected = ahead.estimate
    durations = {cell.cell_id: cell.duration_ns for cell in expected.cells}
    table = Table(box=None, pad_edge=False)
    for title, justify in (("cell", "left"), ("params", "right"), ("calls", "right"), ("sent/step", "right"),
                           ("memory", "right"),
                           ("at most", "right"), ("", "left")):  # fmt: skip
        table.add_column(title, justify=justify, no_wrap=title not in ("cell", ""), overflow="fold")  # type: ignore[arg-type]
    labels = cell_labels([cell.spec for cell in plan.cells])
    for cell, label in zip(plan.cells, labels, strict=True):
        cell_id = cell.spec.cell_id
        sent = sum(op.size_bytes for op in cell.comm_plan)
        table.add_row(
            label.text,
            "-" if cell.facts is None else format_count(cell.facts.num_parameters),
            str(len(cell.comm_plan)),
            format_bytes(sent) if sent else "-",
            "-" if cell.memory_plan is None else _held(cell.memory_plan),
            format_duration(durations[cell_id]) if cell_id in durations else "-",
            _remark(cell, ahead),
        )
    print_block(table)
    for cell, label in zip(plan.cells, labels, strict=True):
        if cell.memory_plan and len({(op.phase, op.op) for op in cell.comm_plan}) > 1:
            say(f"\n{label.text}\n  {_sent(cell)}\n  {_kinds(cell.memory_plan)}")
    time = ""
    if durations:
        bound = "at most " if expected.upper_bound else "about "
        time = f", {bound}{format_duration(expected.total_ns)} with {format_duration(expected.startup_ns)} of start-up"
    kept = f", {len(ahead.kept)} kept from before" if ahead.kept else ""
    if profiled:
        beside = "" if options.tensorboard is None else f", also in {options.tensorboard}"
        time += f", each with three more steps for a trace{beside}"
    say(f"\n{len(durations)} of {counted(len(plan.cells), 'cell')} to run{kept}{time}")


def _held(plan: MemoryPlan) -> str:
    """Write how much memory a rank holds in all; ``> 2.39 MB`` where activations are not known."""
    if plan.activations is None:
        return f"> {format_bytes(plan.total_bytes)}"
    return format_bytes(plan.total_bytes + sum(plan.activations.values()))


def _sent(cell: PlannedCell) -> str:
    """Write the collectives of a step by phase: ``forward 5 all_gather 4.25 MB (blocking), backward ...``."""
    calls = grouped(cell.comm_plan, lambda op: (op.phase, op.op, op.group, op.blocking))
    return ", ".join(
        f"{phase} {len(ops)} {name}{'' if group == 'dp' else f' on {group}'}"
        f" {format_bytes(sum(op.size_bytes for op in ops))}{' (blocking)' if blocking else ''}"
        for (phase, name, group, blocking), ops in calls.items()
    )


def _kinds(plan: MemoryPlan) -> str:
    kinds = {
        "parameters": plan.parameter_bytes,
        "gradients": plan.gradient_bytes,
        "optimizer": plan.optimizer_bytes,
        "buffers": plan.communication_bytes,
        "activations": None if plan.activations is None else sum(plan.activations.values()),
    }
    return "a rank holds " + ", ".join(
        f"{kind} {'unknown' if n is None else format_bytes(n)}" for kind, n in kinds.items()
    )


def _remark(cell: PlannedCell, ahead: Outlook) -> str:
    """Say why a cell does not run, or runs although it has a result."""
    status = ahead.kept.get(cell.spec.cell_id)
    if cell.unsupported:
        return f"unsupported: {cell.unsupported}"
    if cell.skipped:
        return cell.skipped
    if status is not None:
        return "kept" if status.status == "ok" else f"kept: {status_label(status.status)}"
    if cell.spec.cell_id in ahead.rerun:
        return "measured again: --rerun"
    return "measured again: no trace" if cell.spec.cell_id in ahead.again else ""


def refuse_two_kinds(plan: ReadyMatrix) -> None:
    """Raises UsageError in a world that a launcher started: its ranks run training cells, or a sweep, and end."""
    if plan.comm is None or not plan.cells or joined_world(os.environ) is None:
        return
    others = ",".join(name for name in plan.matrix.sections if name != "comm")
    raise UsageError(
        f"the matrix {plan.matrix.name!r} trains and sweeps collectives, and a launcher started this world",
        why="the ranks of a started world run one of the two",
        fix=f"start it twice with the same -o DIR: --only comm, then --only {others}"
        if others
        else "start it outside srun and torchrun, or without the sweep: --set comm=null",
    )


def run_cells(request: RunRequest) -> int:
    """Run cells of which everything is said at the end, together with the sweep or by section; their exit code."""
    layout = request.layout
    runs = run_and_show(
        request,
        renew=lambda: derive_results(layout),
        finish=lambda: derive_results(layout),
        show=None,
        saved=str(layout.results_jsonl),
    )
    ours = {planned.spec.cell_id for planned in request.cells}
    return exit_code(run.status for run in runs if run.run_id in ours) if ours else ExitCode.OK


def sweep(plan: ReadyMatrix, layout: RunLayout, options: Bench) -> int:
    """Run the sweep of ``plan`` into ``comm`` of the run folder, printing nothing but progress; its exit code.

    On the ranks, threads and network of the cells: what a collective takes there is what their steps pay.
    """
    assert plan.comm is not None
    own, launch = plan.comm, plan.matrix.launch
    log("collectives" if own.ops != "none" else "matrix products", "bold")
    least = 1 if own.matmul else 2  # one rank reduces nothing
    alike = [c.spec for c in (*plan.cells, *plan.others) if c.runnable and c.spec.world_size >= least]
    networks, threads = {spec.network for spec in alike}, {spec.threads_per_rank for spec in alike}
    try:
        return run_comm(
            Comm(
                ops=own.ops, sizes=own.sizes, dtype=own.dtype, pairs=own.pairs, matmul=own.matmul, overlap=own.overlap,
                budget=f"{own.budget_s:g}s", backend=launch.backend, device=launch.device,
                ranks=",".join(map(str, sorted({spec.world_size for spec in alike}))) or None,
                threads=str(threads.pop()) if len(threads) == 1 else "auto",
                emulate_network=networks.pop() if len(networks) == 1 else None,
                hosts=options.hosts, ssh=options.ssh, remote_python=options.remote_python,
                output=layout.comm_run.root, force=options.force,
            ),
            printed=False,
        )  # fmt: skip
    except Interrupted as stop:
        raise Interrupted(
            stop.what,
            signum=stop.exit_code - 128,
            fix=f"run the same command with `-o {layout.root}` to complete what is missing",
        ) from None


def show_sections(layout: RunLayout, *, json: bool) -> None:
    """Write ``results.json`` and the summary, and print them: the document, or a table or more for each section."""
    run = read_run(layout.root)
    runs = derive_results(layout)
    evidence = load_evidence([layout.root], traces=False)
    diagnosis = diagnose(evidence)
    document = suite_document(run, evidence, diagnosis)
    write_bytes(layout.results_json, encode_document(document))
    write_summary(layout, runs, run=run, findings=diagnosis.findings)
    if json:
        print_document(document)
        return
    show_runs(evidence, diagnosis, layout.root)
    for section, tables in suite_tables(run, evidence):
        say(section, "bold underline")
        for table in tables:
            say()
            show_table(table, titled=len(tables) > 1)
        if not tables:
            say("nothing was measured", "yellow")
        say()
    _recommend(layout, diagnosis)


def _recommend(layout: RunLayout, diagnosis: Diagnosis) -> None:
    say("recommendations", "bold underline")
    print_findings(shown(diagnosis))
    if not diagnosis.findings:
        say("none: no rule found anything")
    say(f"\n{remainder(diagnosis)}all: stepscope diagnose {layout.root}", "dim")
    say(f"document {layout.results_json}\nreport   stepscope report {layout.root}")

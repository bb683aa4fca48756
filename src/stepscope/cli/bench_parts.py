"""A matrix that brings a sweep of collectives, or has sections: run as one, shown as one document."""

from __future__ import annotations

import os

from stepscope.cli.blocks import show_table
from stepscope.cli.comm_run import run as run_comm
from stepscope.cli.commands.comm import Comm
from stepscope.cli.console import err, out, print_document, say
from stepscope.cli.findings import print_figures, print_findings
from stepscope.cli.progress import run_and_show
from stepscope.core.errors import ExitCode, Interrupted, UsageError
from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.headlines import remainder, shown
from stepscope.launch.join import joined_world
from stepscope.matrix.cell_kind import RunRequest
from stepscope.matrix.run_place import exit_code
from stepscope.matrix.session import ReadyMatrix, derive_results
from stepscope.records.codec import encode_document
from stepscope.records.finding import Diagnosis
from stepscope.report.suite import suite_document, suite_tables
from stepscope.report.summary import write_summary
from stepscope.results.open import load_evidence
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_run
from stepscope.store.writer import write_bytes


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


def sweep(plan: ReadyMatrix, layout: RunLayout, *, force: bool) -> int:
    """Run the sweep of ``plan`` into ``comm`` of the run folder, printing nothing but progress; its exit code.

    On the ranks, threads and network of the cells: what a collective takes there is what their steps pay.
    """
    assert plan.comm is not None
    own, launch = plan.comm, plan.matrix.launch
    err().print("collectives" if own.ops != "none" else "matrix products", style="bold")
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
                output=layout.comm_run.root, force=force,
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
    console = out()
    print_figures(evidence, diagnosis)
    for section, tables in suite_tables(run, evidence):
        say(section, "bold underline")
        for table in tables:
            console.print()
            show_table(table, titled=len(tables) > 1)
        if not tables:
            say("nothing was measured", "yellow")
        console.print()
    _recommend(layout, diagnosis)


def _recommend(layout: RunLayout, diagnosis: Diagnosis) -> None:
    say("recommendations", "bold underline")
    print_findings(shown(diagnosis))
    if not diagnosis.findings:
        say("none: no rule found anything")
    say(f"\n{remainder(diagnosis)}all: stepscope diagnose {layout.root}", "dim")
    say(f"document {layout.results_json}\nreport   stepscope report {layout.root}")

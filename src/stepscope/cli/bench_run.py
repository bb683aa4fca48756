"""Running a plan from the command line: progress, results, the table, the exit code. Shared by bench and demo."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from stepscope.cli.console import OutputError, ReaderGone, out, print_json
from stepscope.cli.progress import progress
from stepscope.core.errors import Interrupted, UsageError
from stepscope.launch.join import become_rank_half, group_id, joined_world
from stepscope.matrix.resolved import resolved_matrix
from stepscope.matrix.results import bench_document
from stepscope.matrix.run_folder import read_statuses
from stepscope.matrix.runner import RunRequest, run_matrix
from stepscope.matrix.session import Plan, cache_dir, derive_results, exit_code
from stepscope.records.run import ResultRow, RunRecord
from stepscope.report.findings import findings
from stepscope.report.render import terminal
from stepscope.report.summary import write_summary
from stepscope.report.tables.summary import build as summary_table
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_run
from stepscope.store.writer import WriteError

RUNS = Path("stepscope-runs")


def default_run_dir(name: str) -> Path:
    """``stepscope-runs/NAME-YYYYMMDD-HHMMSS`` in the current folder."""
    return RUNS / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"


def run_plan(
    plan: Plan,
    *,
    output: Path | None,
    json: bool,
    profile: bool = False,
    tensorboard: Path | None = None,
    retry_failed: bool = False,
    force: bool = False,
) -> int:
    """Run what is missing, write results and report, print them; the command's exit code."""
    joined = joined_world(os.environ)
    if joined is not None and output is None:
        raise UsageError(
            "inside a world that a launcher started, the run folder must be named",
            why="every rank has to find the same one",
            fix="add -o DIR on a file system that all hosts share, or unset RANK and WORLD_SIZE",
        )
    layout = RunLayout(output or default_run_dir(plan.matrix.name))
    if joined is not None and joined[0] != 0:
        become_rank_half(layout.group(group_id(os.environ)).spec)
    if joined is not None and plan.matrix.launch.env:
        raise UsageError(
            f"launch.env ({', '.join(sorted(plan.matrix.launch.env))}) cannot be set in ranks that exist already",
            fix="export these variables in your launcher and take launch.env out of the matrix",
        )
    measure = plan.matrix.measure
    request = RunRequest(
        layout=layout,
        name=plan.matrix.name,
        matrix=resolved_matrix(plan.matrix),
        cells=plan.cells,
        measure=replace(measure, profile=measure.profile or profile or tensorboard is not None),
        usable_cores=_cores_of_the_world(plan.environment.usable_cores, joined),
        argv=("stepscope", *sys.argv[1:]),
        cache_dir=cache_dir(os.environ),
        env=plan.matrix.launch.env,
        isolate=plan.matrix.launch.isolate,
        joined=None if joined is None else group_id(os.environ),
        retry_failed=retry_failed,
        force=force,
        data_dir=plan.data_dir,
        tensorboard_dir=tensorboard,
        environment=plan.environment,
    )
    try:
        try:
            with progress() as show:
                run_matrix(request, show)
        except Interrupted:
            with suppress(
                OutputError, ReaderGone
            ):  # what stopped the run may have taken the terminal with it
                _finish(layout, json=json)
            raise
        rows = _finish(layout, json=json)
    except WriteError as error:
        raise _stopped_by_the_disk(layout, error) from error
    ours = {cell.spec.cell_id for cell in plan.cells}
    return exit_code([row for row in rows if row.cell_id in ours])


def _stopped_by_the_disk(layout: RunLayout, error: WriteError) -> WriteError:
    """The same error with what becomes of the run; as it is where no run has begun yet."""
    run = read_run(layout.root) if layout.run.exists() else None
    if run is None:
        return error
    statuses = read_statuses(layout, run.cells)
    finished = sum(status.status == "ok" for status in statuses.values())
    return WriteError(
        error.what,
        why=error.why,
        fix=f"free some space and run the same command with `-o {layout.root}`: {finished} of {len(run.cells)} cells "
        "are finished and saved there, only the rest will run",
    )


def _cores_of_the_world(usable_cores: int, joined: tuple[int, int] | None) -> int:
    """Cores that all ranks share: this host's, times the hosts of a world that a launcher started."""
    local = os.environ.get("LOCAL_WORLD_SIZE", "")
    if joined is None or not local.isdigit() or int(local) < 1:
        return usable_cores
    return usable_cores * max(1, joined[1] // int(local))


def _finish(layout: RunLayout, *, json: bool) -> tuple[ResultRow, ...]:
    """Derive everything from the run folder and print it: JSON on stdout, or the table and where the rest is."""
    rows = derive_results(layout)
    run = read_run(layout.root)
    write_summary(layout, rows, run=run)
    try:
        _print(layout, rows, run=run, json=json)
    except OutputError as error:
        saved = f"the results are saved: {layout.results_jsonl} and {layout.summary_md}"
        raise OutputError(error.what, why=error.why, fix=saved) from error
    return rows


def _print(layout: RunLayout, rows: tuple[ResultRow, ...], *, run: RunRecord, json: bool) -> None:
    if json:
        print_json(msgspec.json.format(msgspec.json.encode(bench_document(run, rows)), indent=2))
        return
    console = out()
    console.print(terminal.render(summary_table(rows), width=console.width), soft_wrap=True)
    for finding in findings(rows):
        console.print(finding, markup=False, soft_wrap=True)
    console.print(
        f"\nresults  {layout.results_jsonl}\nreport   {layout.summary_md}", markup=False, soft_wrap=True
    )

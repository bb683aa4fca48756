"""Which tables evidence fills, by what they are of: the page, the files and the text take theirs from here.

Which tables the page shows, and how much of each.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf

from stepscope.core.dataclass import record
from stepscope.core.words import counted
from stepscope.records.comm import CommRow
from stepscope.report.table import Column, Table, Value
from stepscope.report.trace_sections import table as trace_table
from stepscope.report.views import (
    bars,
    buckets,
    comm,
    diary,
    dry_run,
    epochs,
    findings,
    links,
    memory,
    nccl_debug,
    pipeline,
    ranks,
    runs,
    scaling,
    step_budget,
    step_parts,
)
from stepscope.report.views.runs import history_table
from stepscope.results.comm_facts import topology_of
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.results.experiments import checks_of
from stepscope.results.history import history
from stepscope.results.labels import sweeps


def experiment_tables(evidence: Evidence) -> tuple[Table, ...]:
    """Return the tables of what experiments expected and measured; none without one."""
    table = findings.experiment_table(checks_of(evidence))
    return (table,) if table.rows else ()


def run_tables(evidence: Evidence, *, drop_epochs: int = 1) -> tuple[Table, ...]:
    """Return the tables of training runs: precisions against FP32, machines against each other, bucket sizes, phases over
    steps and ranks, what overlap gains, memory by batch, and what the links under them carry."""
    made = (
        *(bars.compared_table(key, evidence.runs, drop_epochs) for key in ("precision", "hardware")),
        buckets.bucket_sweep_table(evidence.cells),
        step_budget.phase_spread_table(evidence.cells),
        step_parts.gain_table(evidence.cells, evidence.traces),
        memory.memory_batches_table(evidence.runs, evidence.cells),
        links.links_table(evidence.comm, evidence.environment, topology_of(evidence)),
    )
    return tuple(table for table in made if table.rows)


def step_tables(evidence: Evidence) -> tuple[Table, ...]:
    """Return the tables of profiled jobs: the parts of all their steps, ranks x phases, and what happened between steps."""
    made = tuple(view.build(evidence.profiled) for view in (step_parts, ranks, diary))
    return tuple(table for table in made if table.rows)


def dry_tables(evidence: Evidence) -> tuple[Table, ...]:
    """Return the tables of dry runs: the step on each number of GPUs, then of each run its parts and memory."""
    dry = tuple(job for job in evidence.dry if job.worlds)
    if not dry:
        return ()
    views = (
        dry_run.dry_parts_table, dry_run.dry_changes_table, dry_run.dry_memory_table, dry_run.dry_at_peak_table,
        dry_run.dry_kernels_table, dry_run.dry_traffic_table,
    )  # fmt: skip
    made = (dry_run.dry_steps_table(dry), *(view([job]) for job in dry for view in views))
    return tuple(table for table in made if table.rows)


def machine_tables(evidence: Evidence) -> tuple[Table, ...]:
    """Return the tables of what NCCL's logs, the link matrix and memory snapshots hold."""
    matrix = topology_of(evidence)
    made = [table for debug in evidence.nccl for table in nccl_debug.build_all(debug)]
    made += [links.topology_table(matrix)] if matrix is not None and len(matrix.devices) > 1 else []
    return (*made, *memory_tables(evidence))


def memory_tables(evidence: Evidence) -> tuple[Table, ...]:
    """Return the tables of memory snapshots: devices, then what held their memory by kind, by line and by module."""
    snapshots = evidence.memory
    made = (
        memory.memory_snapshots_table(snapshots),
        memory.memory_kinds_table(snapshots),
        *memory.memory_holders_tables(snapshots),
    )
    return tuple(table for table in made if table.rows)


def comm_tables(rows: Sequence[CommRow]) -> tuple[Table, ...]:
    """Return the tables of sweeps, then of what is made of them; pairs, overlap and matrix products where measured."""
    several = len(sweeps(row for row in rows if row.kind == "collective")) > comm.MAX_AVERAGES
    tables = (
        comm.comm_table(rows),
        *([comm.overview_table(rows)] if several else []),
        comm.winners_table(rows),
        links.pairs_table(rows),
        links.slow_pairs_table(rows),
        comm.beside_table(rows),
        comm.matmul_table(rows),
    )
    return tuple(table for table in tables if table.rows or table.notes)


MAX_NOTES = 50

MAX_ROWS = 2_000
"""Rows of one table in the page; the CSV files beside it have all."""

FOLD = 40
"""Rows from which on a table that charts show, too, starts closed."""

FOLD_COMM = 200
"""The same of a sweep of collectives."""

MANY_TRACES = 4
"""From more traced jobs than this on, each shows its budget only."""


@record
class Shown:
    """A table as the page has it. columns: indices of those with anything in them. left_out: rows beyond the limit.

    throughout: names that all rows share, said once. fold: starts closed.
    """

    table: Table
    columns: tuple[int, ...]
    left_out: int
    throughout: str = ""
    fold: bool = False


def shown(table: Table, *, fold: bool = False, keep: int = MAX_ROWS) -> Shown:
    """Return ``table`` without empty columns, with names that all rows share said once, and at most ``keep`` rows."""
    rows = table.rows[:keep]
    columns = [
        i
        for i, column in enumerate(table.columns)
        if column.role == "lead" or any(row.values[i].raw not in (None, "") for row in rows)
    ]
    alike = [
        i
        for i in columns
        if len(rows) > 1
        and table.columns[i].role in ("group", "identity")
        and len({row.values[i].text for row in rows}) == 1
    ]
    columns = [i for i in columns if i not in alike]
    return Shown(
        table=replace(table, rows=rows),
        columns=tuple(columns),
        left_out=len(table.rows) - len(rows),
        throughout=", ".join(_said_once(table.columns[i], rows[0].values[i]) for i in alike),
        fold=fold,
    )


def _said_once(column: Column, value: Value) -> str:
    return value.text if column.role == "group" else f"{column.title} {value.text}"


def all_tables(evidence: Evidence, *, drop_epochs: int = 1) -> tuple[Shown, ...]:
    """Return every table of the page but scaling's, which stands with its charts."""
    return tuple(
        shown(table, fold=len(table.rows) > fold) for table, fold in _page_tables(evidence, drop_epochs=drop_epochs)
    )


def every_table(evidence: Evidence, *, drop_epochs: int = 1) -> tuple[Table, ...]:
    """Return every table of the page, whole, and that of scaling."""
    made = [table for table, _ in _page_tables(evidence, drop_epochs=drop_epochs)]
    if evidence.scaling:
        made.append(scaling.scaling_table(evidence.scaling, evidence.runs, drop_epochs=drop_epochs))
    return tuple(table for table in made if table.rows)


def _page_tables(evidence: Evidence, *, drop_epochs: int) -> Iterator[tuple[Table, float]]:
    """Yield the tables of the page, and the rows from which on each starts closed."""
    if (past := history(evidence)) is not None:
        yield history_table(past), inf
    for table in (*experiment_tables(evidence), *dry_tables(evidence), *step_tables(evidence)):
        yield table, inf
    if evidence.runs:
        table = runs.build(evidence.runs, evidence.scaling, drop_epochs=drop_epochs, show=runs.PAGE)
        yield replace(table, key="runs", title="Runs", notes=table.notes[:MAX_NOTES]), inf
    if (lost := scaling.scaling_budget_table(evidence.scaling_budgets)).rows:
        yield lost, inf
    for table in run_tables(evidence, drop_epochs=drop_epochs):
        yield table, FOLD
    for table in comm_tables(evidence.comm):
        yield table, FOLD_COMM
    for table in (
        *memory.held_table(evidence.cells),
        *pipeline.pipeline_table(evidence.cells),
        *machine_tables(evidence),
    ):
        yield table, inf
    if any(run.epochs for run in evidence.runs):
        yield epochs.epochs_table(evidence.runs), 0


def trace_tables(evidence: Evidence, *, first: Sequence[str] = ()) -> tuple[tuple[str, tuple[Shown, ...]], ...]:
    """Return for each traced job its name and tables: where the time went, for few jobs also collectives and waiting.

    first: names in the order wanted.
    """
    sections = ("budget",) if len(evidence.traces) > MANY_TRACES else ("budget", "collectives", "stragglers")
    ordered = sorted(evidence.traces, key=lambda t: first.index(t.name) if t.name in first else len(first))
    return tuple((trace.name, tuple(_trace_sections(trace, sections))) for trace in ordered)


def _trace_sections(trace: TraceEvidence, sections: Sequence[str]) -> list[Shown]:
    tables = [trace_table(trace.summary, section) for section in sections]
    return [shown(table) for table in tables if table.rows]


def rows_left_out(table: Shown) -> str | None:
    """Write what a reader must know of a table that was cut; None where it is whole."""
    return f"{counted(table.left_out, 'more row')}: in the CSV files" if table.left_out else None

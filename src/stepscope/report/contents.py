"""Which tables evidence fills, by what they are of: the page, the files and the text take theirs from here."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.records.comm import CommRow
from stepscope.report.table import Table
from stepscope.report.views import (
    bars,
    buckets,
    comm,
    diary,
    findings,
    links,
    memory,
    nccl_debug,
    overlap_gain,
    step_budget,
    step_parts,
)
from stepscope.results.comm_facts import topology_of
from stepscope.results.comm_labels import sweeps
from stepscope.results.evidence import Evidence
from stepscope.results.experiments import checks_of


def experiment_tables(evidence: Evidence) -> tuple[Table, ...]:
    """What experiments expected and found; none without one."""
    table = findings.experiment_table(checks_of(evidence))
    return (table,) if table.rows else ()


def run_tables(evidence: Evidence, *, drop_epochs: int = 1) -> tuple[Table, ...]:
    """Of training runs: precisions against FP32, machines against each other, bucket sizes, phases over steps and ranks,
    what overlap gains, memory by batch, and what the links under them carry."""
    made = (
        *(bars.compared_table(key, evidence.runs, drop_epochs) for key in ("precision", "hardware")),
        buckets.bucket_sweep_table(evidence.cells),
        step_budget.phase_spread_table(evidence.cells),
        overlap_gain.build(evidence.cells, evidence.traces),
        memory.memory_batches_table(evidence.runs, evidence.cells),
        links.links_table(evidence.comm, evidence.environment, topology_of(evidence)),
    )
    return tuple(table for table in made if table.rows)


def step_tables(evidence: Evidence) -> tuple[Table, ...]:
    """Of profiled jobs: the parts of all their steps, and what happened between them."""
    made = (step_parts.build(evidence.profiled), diary.build(evidence.profiled))
    return tuple(table for table in made if table.rows)


def machine_tables(evidence: Evidence) -> tuple[Table, ...]:
    """What NCCL's logs, the link matrix and memory snapshots hold."""
    matrix = topology_of(evidence)
    found = [table for debug in evidence.nccl for table in nccl_debug.build_all(debug)]
    found += [links.topology_table(matrix)] if matrix is not None and len(matrix.devices) > 1 else []
    return (*found, *memory_tables(evidence))


def memory_tables(evidence: Evidence) -> tuple[Table, ...]:
    """Memory snapshots: the devices, then what held their memory by kind, by line and by module."""
    found = evidence.memory
    made = (
        memory.memory_snapshots_table(found),
        memory.memory_kinds_table(found),
        *memory.memory_holders_tables(found),
    )
    return tuple(table for table in made if table.rows)


def comm_tables(rows: Sequence[CommRow]) -> tuple[Table, ...]:
    """Sweeps first, then what is made of them; pairs, overlap and matrix products where they were measured."""
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

"""A run with sections as one document, and as tables section by section."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stepscope.records import codec
from stepscope.records.cell import RunRecord
from stepscope.records.finding import Diagnosis
from stepscope.records.training import TrainingRun
from stepscope.report.comm_document import document_001
from stepscope.report.table import Table
from stepscope.report.views import comm, links, memory, runs, scaling
from stepscope.results.comm_facts import link_rates, topology_of
from stepscope.results.evidence import Evidence
from stepscope.results.run_figures import bench_rows
from stepscope.results.sweeps import memory_by_batch

COMM = "comm"


def suite_document(run: RunRecord, evidence: Evidence, diagnosis: Diagnosis) -> dict[str, Any]:
    """What ``bench --json`` prints of a matrix with sections: head, ``results`` with a key for each section that has any,
    ``links`` and ``recommendations``. Keys that hold a quantity name its base unit; unknown is null.
    """
    created = next((source.created for source in evidence.sources if source.created), None)
    ran = [each for each in evidence.runs if each.status == "ok"]
    hardware = dict.fromkeys(each.hardware for each in ran if each.hardware)
    shared = document_001(evidence.comm, run.name, timestamp=created, device=", ".join(hardware) or None)
    ranks = [row.world_size for row in evidence.comm if row.status == "ok"] + [each.world_size or 1 for each in ran]
    topology = topology_of(evidence)
    return {
        **codec.headed("suite/1"),
        "name": run.name,
        "world_size": max(ranks, default=None),
        "timestamp": shared["timestamp"],
        "config": shared["config"] | {"measure": run.matrix.get("measure"), "comm": run.matrix.get("comm")},
        "results": {
            **({"communication": shared["results"]["communication"]} if evidence.comm else {}),
            **{name: _DOCUMENTED.get(name, _rows)(found, evidence) for name, found in _sections(run, evidence)},
        },
        "links": [
            {**codec.to_builtins(rate), "share": rate.share}
            for rate in link_rates(evidence.comm, evidence.environment, topology)
        ],
        "recommendations": [codec.to_builtins(finding) for finding in diagnosis.findings],
        "run": codec.to_builtins(run),
    }


def suite_tables(run: RunRecord, evidence: Evidence) -> Iterator[tuple[str, tuple[Table, ...]]]:
    """(section, its tables), the sweep of collectives first; of sections that were run."""
    if evidence.comm:
        made = (
            comm.overview_table(evidence.comm),
            links.links_table(evidence.comm, evidence.environment, topology_of(evidence)),
        )
        yield COMM, tuple(table for table in made if table.rows)
    for name, found in _sections(run, evidence):
        yield name, tuple(table for table in _TABLES.get(name, _runs_table)(found, evidence) if table.rows)


def _sections(run: RunRecord, evidence: Evidence) -> Iterator[tuple[str, tuple[TrainingRun, ...]]]:
    """Sections of which every cell was asked for, with the runs of these."""
    by_id = {each.run_id: each for each in evidence.runs}
    whole = {*run.cells, *run.earlier_cells}
    for name, cells in run.sections.items():
        if whole.issuperset(cells):
            yield name, tuple(by_id[cell] for cell in cells if cell in by_id)


def _rows(found: Sequence[TrainingRun], evidence: Evidence) -> dict[str, Any]:
    ids = {each.run_id for each in found}
    return {"cells": [row for row in bench_rows(evidence.runs) if row["cell_id"] in ids]}


def _memory_rows(found: Sequence[TrainingRun], evidence: Evidence) -> dict[str, Any]:
    return {
        "batches": [
            {
                "cell_id": each.run.run_id,
                "status": each.run.status,
                "error": each.run.error,
                "model": each.run.model,
                "strategy": each.run.strategy,
                "world_size": each.run.world_size,
                "micro_batch": each.micro_batch,
                "peak_memory_bytes": each.peak_bytes,
                "held_bytes": dict(each.held) or None,
                "bytes_per_further_sample": each.per_sample_bytes,
                "samples_per_s": None if each.run.samples_per_s is None else each.run.samples_per_s.value,
            }
            for group in memory_by_batch(found, evidence.cells)
            for each in group
        ]
    }


def _scaling_rows(found: Sequence[TrainingRun], evidence: Evidence) -> dict[str, Any]:
    ids = {each.run_id for each in found}
    return {
        "rows": [codec.to_builtins(row) for row in evidence.scaling if row.run_id in ids],
        "not_measured": [
            {"cell_id": each.run_id, "world_size": each.world_size, "status": each.status, "error": each.error}
            for each in found
            if each.status != "ok"
        ],
    }


def _runs_table(found: Sequence[TrainingRun], evidence: Evidence) -> tuple[Table, ...]:
    del evidence
    return (runs.of_cells(found),)


def _scaling_tables(found: Sequence[TrainingRun], evidence: Evidence) -> tuple[Table, ...]:
    ids = {each.run_id for each in found}
    table = scaling.scaling_table([row for row in evidence.scaling if row.run_id in ids], found)
    missing = [each for each in found if each.status != "ok"]
    return (table, runs.of_cells(missing)) if missing else (table,)


_DOCUMENTED: dict[str, Callable[[Sequence[TrainingRun], Evidence], dict[str, Any]]] = {
    "memory": _memory_rows,
    "scaling": _scaling_rows,
}
_TABLES: dict[str, Callable[[Sequence[TrainingRun], Evidence], tuple[Table, ...]]] = {
    "memory": lambda found, evidence: (memory.memory_batches_table(found, evidence.cells),),
    "scaling": _scaling_tables,
}
"""Sections that are told in their own way; the others are their runs."""

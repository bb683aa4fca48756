"""``report/summary.md``: the table with what one must know to read it.

A run with sections as one document, and as tables section by section.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from stepscope.core.errors import DataError
from stepscope.core.units import format_bytes_binary
from stepscope.core.words import counted, plural
from stepscope.diagnose.narrator import headline
from stepscope.records import codec
from stepscope.records.cell import CellStatus, RunRecord
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.finding import Diagnosis, Finding
from stepscope.records.samples import RankSummary
from stepscope.records.training import TrainingRun
from stepscope.report.comm_document import comm_suite_document
from stepscope.report.render import files
from stepscope.report.table import Table
from stepscope.report.views import comm, links, memory, runs, scaling
from stepscope.report.views.runs import of_cells
from stepscope.results.comm_facts import link_rates, topology_of
from stepscope.results.evidence import Evidence
from stepscope.results.labels import cell_labels, failure_label
from stepscope.results.run_figures import bench_rows
from stepscope.results.sweeps import memory_by_batch
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_if_there
from stepscope.store.writer import write_bytes


def write_summary(
    layout: RunLayout, rows: Sequence[TrainingRun], *, run: RunRecord | None = None, findings: Sequence[Finding] = ()
) -> None:
    """Write ``report/summary.md`` of a run folder. ``run`` None: it is read from the folder, where it is there."""
    run = run or read_if_there(layout.run, RunRecord)
    environment = read_if_there(layout.environment, EnvironmentRecord)
    parts = [f"# Results: {run.name if run else layout.root.name}", ""]
    if run is not None and run.argv:
        parts += ["Made by:", "", "```", *(shlex.join(argv) for argv in run.commands or (run.argv,)), "```", ""]
    machine = environment_lines(environment, rows, _first_summaries(layout, rows))
    parts += ["## Machine", "", *(f"- {line}" for line in machine), ""]
    if findings:
        parts += ["## Findings", "", *(f"- {headline(finding)}" for finding in findings), ""]
    parts += ["## Table", "", files.as_markdown(of_cells(rows)), *_failed_lines(layout, rows)]
    parts += [
        "## Files",
        "",
        "- [results.csv](../results.csv), [results.jsonl](../results.jsonl): a row per cell, base units, unknown is empty.",
        "- `../cells/CELL/samples-RANK.jsonl`: every step of every rank with its phases, warm-up included.",
        "- [environment.json](../environment.json), [run.json](../run.json): the machine, and the matrix as resolved.",
        "",
    ]
    write_bytes(layout.summary_md, "\n".join(parts).encode())  # links in it are relative to its folder


def environment_lines(
    environment: EnvironmentRecord | None, rows: Sequence[TrainingRun], ranks: Sequence[RankSummary]
) -> tuple[str, ...]:
    """Say what it ran on: host, processor or GPUs, torch, backend, threads and scheduling policy; unknown parts
    say so."""
    lines = []
    if environment is None:
        lines.append("environment: not recorded")
    else:
        cores = f"{environment.usable_cores} of {counted(environment.logical_cores, 'core')}"
        memory = format_bytes_binary(environment.memory_bytes)
        lines.append(
            f"{environment.host}: {environment.cpu_model or 'unknown CPU'}, {cores}, {memory}, {environment.os}"
        )
        lines.append(_gpu_line(environment))
    versions = sorted({rank.torch_version for rank in ranks})
    backends = sorted({f"{row.device}/{row.backend}" for row in rows})
    torch = f"torch {', '.join(versions)}" if versions else "torch version not recorded"
    lines.append(f"{torch}; {', '.join(backends) if backends else 'no cells'}")
    policies = sorted({rank.scheduler_policy for rank in ranks})
    threads = sorted({rank.num_threads for rank in ranks})
    if ranks:
        lines.append(
            f"{' or '.join(map(str, threads))} {plural(threads[-1], 'thread')} per rank, "
            f"scheduling policy {', '.join(policies)}"
        )
    return tuple(lines)


def _gpu_line(environment: EnvironmentRecord) -> str:
    if environment.gpus:
        names: dict[str, int] = {}
        for gpu in environment.gpus:
            names[gpu.name] = names.get(gpu.name, 0) + 1
        return "GPUs: " + ", ".join(f"{count} x {name}" for name, count in names.items())
    reason = environment.unavailable.get("gpus") or environment.unavailable.get("gpu")
    return f"no GPU ({reason})" if reason else "no GPU"


def _readable_status(layout: RunLayout, row: TrainingRun) -> CellStatus | None:
    """Return the cell's status; None where there is none or it is damaged (the row says so already)."""
    try:
        return read_if_there(layout.cell(row.run_id).status, CellStatus)
    except DataError:
        return None


def _first_summaries(layout: RunLayout, rows: Sequence[TrainingRun]) -> list[RankSummary]:
    """Return rank 0's summary of every cell that has one."""
    summaries = (read_if_there(layout.cell(row.run_id).summary(0), RankSummary) for row in rows if row.status == "ok")
    return [summary for summary in summaries if summary is not None]


def _failed_lines(layout: RunLayout, rows: Sequence[TrainingRun]) -> list[str]:
    failed = [row for row in rows if row.status != "ok"]
    if not failed:
        return []
    labels = dict(zip((row.run_id for row in rows), cell_labels(rows), strict=True))
    lines = ["## Cells without a result", ""]
    for row in failed:
        lines.append(f"- {labels[row.run_id].text} (`{row.run_id}`): {failure_label(row)}")
        lines += _where_to_look(layout, row)
    return [*lines, ""]


def _where_to_look(layout: RunLayout, row: TrainingRun) -> list[str]:
    status = _readable_status(layout, row)
    if status is None:
        return []
    paths = [layout.cell(row.run_id).status]
    if status.failing_rank is not None:
        paths.append(layout.cell(row.run_id).error(status.failing_rank))
    if status.group_id is not None:
        group = layout.group(status.group_id)
        paths += [group.launcher_log, group.rank_logs]
    there = [f"`{path.relative_to(layout.root)}`" for path in paths if path.exists()]
    return [f"  - look in {', '.join(there)}"] if there else []


COMM = "comm"


def suite_document(run: RunRecord, evidence: Evidence, diagnosis: Diagnosis) -> dict[str, Any]:
    """Return what ``bench --json`` prints of a matrix with sections: head, ``results`` with a key for each section that has
    any, ``links`` and ``recommendations``. Keys that hold a quantity name its base unit; unknown is null."""
    created = next((source.created for source in evidence.sources if source.created), None)
    ran = [training_run for training_run in evidence.runs if training_run.status == "ok"]
    hardware = dict.fromkeys(training_run.hardware for training_run in ran if training_run.hardware)
    shared = comm_suite_document(evidence.comm, run.name, timestamp=created, device=", ".join(hardware) or None)
    ranks = [row.world_size for row in evidence.comm if row.status == "ok"] + [
        training_run.world_size or 1 for training_run in ran
    ]
    topology = topology_of(evidence)
    return {
        **codec.headed("suite/1"),
        "name": run.name,
        "world_size": max(ranks, default=None),
        "timestamp": shared["timestamp"],
        "config": shared["config"] | {"measure": run.matrix.get("measure"), "comm": run.matrix.get("comm")},
        "results": {
            **({"communication": shared["results"]["communication"]} if evidence.comm else {}),
            **{
                name: _DOCUMENTED.get(name, _section_rows)(section_runs, evidence)
                for name, section_runs in _sections_with_runs(run, evidence)
            },
        },
        "links": [
            {**codec.to_builtins(rate), "share": rate.share}
            for rate in link_rates(evidence.comm, evidence.environment, topology)
        ],
        "recommendations": [codec.to_builtins(finding) for finding in diagnosis.findings],
        "run": codec.to_builtins(run),
    }


def suite_tables(run: RunRecord, evidence: Evidence) -> Iterator[tuple[str, tuple[Table, ...]]]:
    """Yield (section, its tables) of the sections that were run, the sweep of collectives first."""
    if evidence.comm:
        made = (
            comm.overview_table(evidence.comm),
            links.links_table(evidence.comm, evidence.environment, topology_of(evidence)),
        )
        yield COMM, tuple(table for table in made if table.rows)
    for name, section_runs in _sections_with_runs(run, evidence):
        yield name, tuple(table for table in _TABLES.get(name, _runs_table)(section_runs, evidence) if table.rows)


def _sections_with_runs(run: RunRecord, evidence: Evidence) -> Iterator[tuple[str, tuple[TrainingRun, ...]]]:
    """Yield the sections of which every cell was asked for, with the runs of these."""
    by_id = {training_run.run_id: training_run for training_run in evidence.runs}
    whole = {*run.cells, *run.earlier_cells}
    for name, cells in run.sections.items():
        if whole.issuperset(cells):
            yield name, tuple(by_id[cell] for cell in cells if cell in by_id)


def _section_rows(section_runs: Sequence[TrainingRun], evidence: Evidence) -> dict[str, Any]:
    ids = {training_run.run_id for training_run in section_runs}
    return {"cells": [row for row in bench_rows(evidence.runs) if row["cell_id"] in ids]}


def _memory_rows(section_runs: Sequence[TrainingRun], evidence: Evidence) -> dict[str, Any]:
    return {
        "batches": [
            {
                "cell_id": batch.run.run_id,
                "status": batch.run.status,
                "error": batch.run.error,
                "model": batch.run.model,
                "strategy": batch.run.strategy,
                "world_size": batch.run.world_size,
                "micro_batch": batch.micro_batch,
                "peak_memory_bytes": batch.peak_bytes,
                "held_bytes": dict(batch.held_bytes) or None,
                "bytes_per_further_sample": batch.per_sample_bytes,
                "samples_per_s": None if batch.run.samples_per_s is None else batch.run.samples_per_s.value,
            }
            for group in memory_by_batch(section_runs, evidence.cells)
            for batch in group
        ]
    }


def _scaling_rows(section_runs: Sequence[TrainingRun], evidence: Evidence) -> dict[str, Any]:
    ids = {training_run.run_id for training_run in section_runs}
    return {
        "rows": [codec.to_builtins(row) for row in evidence.scaling if row.run_id in ids],
        "not_measured": [
            {
                "cell_id": training_run.run_id,
                "world_size": training_run.world_size,
                "status": training_run.status,
                "error": training_run.error,
            }
            for training_run in section_runs
            if training_run.status != "ok"
        ],
    }


def _runs_table(section_runs: Sequence[TrainingRun], evidence: Evidence) -> tuple[Table, ...]:
    del evidence
    return (runs.of_cells(section_runs),)


def _scaling_tables(section_runs: Sequence[TrainingRun], evidence: Evidence) -> tuple[Table, ...]:
    ids = {training_run.run_id for training_run in section_runs}
    table = scaling.scaling_table([row for row in evidence.scaling if row.run_id in ids], section_runs)
    missing = [training_run for training_run in section_runs if training_run.status != "ok"]
    return (table, runs.of_cells(missing)) if missing else (table,)


_DOCUMENTED: dict[str, Callable[[Sequence[TrainingRun], Evidence], dict[str, Any]]] = {
    "memory": _memory_rows,
    "scaling": _scaling_rows,
}
_TABLES: dict[str, Callable[[Sequence[TrainingRun], Evidence], tuple[Table, ...]]] = {
    "memory": lambda section_runs, evidence: (memory.memory_batches_table(section_runs, evidence.cells),),
    "scaling": _scaling_tables,
}
"""Sections that are told in their own way; the others are their runs."""

"""``report/summary.md``: the table with what one must know to read it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from stepscope.core.errors import DataError
from stepscope.core.units import format_bytes_binary
from stepscope.core.words import counted, plural
from stepscope.diagnose.headlines import headline
from stepscope.records.cell import CellStatus, RunRecord
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.finding import Finding
from stepscope.records.samples import RankSummary
from stepscope.records.training import TrainingRun
from stepscope.report.render import files
from stepscope.report.views.runs import of_cells
from stepscope.results.labels import cell_labels, failure_label
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_if_there
from stepscope.store.writer import write_bytes


def write_summary(
    layout: RunLayout, rows: Sequence[TrainingRun], *, run: RunRecord | None = None, findings: Sequence[Finding] = ()
) -> None:
    """Write ``report/summary.md`` of a run folder; ``run`` None: read from it, where it is there."""
    run = run or read_if_there(layout.run, RunRecord)
    environment = read_if_there(layout.environment, EnvironmentRecord)
    parts = [f"# Results: {run.name if run else layout.root.name}", ""]
    if run is not None and run.argv:
        parts += ["Made by:", "", "```", *(shlex.join(argv) for argv in run.commands or (run.argv,)), "```", ""]
    machine = environment_lines(environment, rows, _first_summaries(layout, rows))
    parts += ["## Machine", "", *(f"- {line}" for line in machine), ""]
    if findings:
        parts += ["## Findings", "", *(f"- {headline(finding)}" for finding in findings), ""]
    parts += ["## Table", "", files.as_markdown(of_cells(rows)), *_failed(layout, rows)]
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
    """What it ran on: host, processor or GPUs, torch, backend, threads and scheduling policy; unknown parts
    say so.
    """
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


def _status(layout: RunLayout, row: TrainingRun) -> CellStatus | None:
    """The cell's status; None where there is none or it is damaged (the row says so already)."""
    try:
        return read_if_there(layout.cell(row.run_id).status, CellStatus)
    except DataError:
        return None


def _first_summaries(layout: RunLayout, rows: Sequence[TrainingRun]) -> list[RankSummary]:
    """Rank 0's summary of every cell that has one."""
    found = (read_if_there(layout.cell(row.run_id).summary(0), RankSummary) for row in rows if row.status == "ok")
    return [summary for summary in found if summary is not None]


def _failed(layout: RunLayout, rows: Sequence[TrainingRun]) -> list[str]:
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
    status = _status(layout, row)
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

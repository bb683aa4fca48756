"""Evidence of several sources as one."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepscope.core.places import telling_names
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.training import TrainingRun
from stepscope.results.comm_labels import ORIGIN_MARK
from stepscope.results.evidence import CellEvidence, Evidence, TraceEvidence

_JOINED = (
    "sources", "runs", "cells", "comm", "records", "traces", "profiled", "nccl", "flight", "watchdog", "memory", "hardware",
    "files_found", "notes", "remarks",
)  # fmt: skip


def join(parts: Sequence[Evidence], names: Sequence[str] | None = None) -> Evidence:
    """All of ``parts``, one alone as it is; a run_id or a sweep that two have gets its source's name before it.

    names: of the parts; None: as their paths tell them apart. A fact that differs is left out.
    """
    if len(parts) < 2:
        return parts[0] if parts else Evidence(sources=())
    counts = Counter(run.run_id for part in parts for run in part.runs)
    clashing = {run_id for run_id, number in counts.items() if number > 1}
    sweeps = Counter(cell_id for part in parts for cell_id in {row.cell_id for row in part.comm})
    twice = {cell_id for cell_id, number in sweeps.items() if number > 1}
    names = names or telling_names([part.sources[0].path for part in parts])
    parts = [
        _with_own_sweeps(_renamed(part, clashing, name), twice, name) for part, name in zip(parts, names, strict=True)
    ]
    traced = Counter(trace.name for part in parts for trace in part.traces)
    parts = [
        replace(part, traces=tuple(_told_apart(each, traced, name) for each in part.traces))
        for part, name in zip(parts, names, strict=True)
    ]
    joined: dict[str, Any] = {name: tuple(x for p in parts for x in getattr(p, name)) for name in _JOINED}
    joined |= {name: tuple(dict.fromkeys(joined[name])) for name in ("notes", "remarks")}
    return Evidence(
        **joined,
        calibration=_only([p.calibration for p in parts]),
        environment=_one_machine([p.environment for p in parts]),
        topology=_only([p.topology for p in parts]),
    )


def _renamed(part: Evidence, clashing: set[str], name: str) -> Evidence:
    if not clashing:
        return part

    def run_of(run: TrainingRun) -> TrainingRun:
        baseline = run.baseline_id
        return replace(
            run,
            run_id=f"{name}/{run.run_id}" if run.run_id in clashing else run.run_id,
            label=f"{name}: {run.label}",
            baseline_id=f"{name}/{baseline}" if baseline in clashing else baseline,
        )

    def cell_of(cell: CellEvidence) -> CellEvidence:
        return replace(cell, run=run_of(cell.run))

    return replace(part, runs=tuple(map(run_of, part.runs)), cells=tuple(map(cell_of, part.cells)))


def _told_apart(trace: TraceEvidence, names: Counter[str], name: str) -> TraceEvidence:
    """A job with its source's name, where another source has one of the same name."""
    if names[trace.name] < 2:
        return trace
    return replace(trace, name=name if name.endswith(trace.name) else f"{name}: {trace.name}")


def _with_own_sweeps(part: Evidence, twice: set[str], name: str) -> Evidence:
    if not twice:
        return part
    rows = (
        replace(row, cell_id=f"{name}{ORIGIN_MARK}{row.cell_id}") if row.cell_id in twice else row for row in part.comm
    )
    return replace(part, comm=tuple(rows))


def _one_machine(environments: Sequence[EnvironmentRecord | None]) -> EnvironmentRecord | None:
    """The first, where all are of one machine: what is free on it changes from run to run."""
    there = [e for e in environments if e is not None]
    return there[0] if there and len({_machine(e) for e in there}) == 1 else None


def _machine(e: EnvironmentRecord) -> tuple[object, ...]:
    return e.host, e.cpu_model, e.usable_cores, e.memory_bytes, tuple(gpu.name for gpu in e.gpus)


def _only(values: Sequence[Any]) -> Any:
    there = [value for value in values if value is not None]
    return there[0] if there and all(value == there[0] for value in there) else None


def as_given(parts: Sequence[Evidence], names: Sequence[str] | None = None) -> Evidence:
    """``parts`` joined. Two that hold a run each, on different numbers of ranks, are a run and its baseline.

    What keeps them from being compared is a remark.
    """
    evidence = join(parts, names)
    runs = [run for run in evidence.runs if run.status == "ok"]
    alone = len(parts) == 2 and all(sum(run.status == "ok" for run in part.runs) == 1 for part in parts)
    if not alone or any(part.cells for part in parts):
        return evidence
    unknown = [run.run_id for run in runs if run.world_size is None]
    differ = [key for key in _ALIKE if len({getattr(run, key) for run in runs} - {None}) > 1]
    if unknown:
        option = shlex.quote(",".join(f"{name}=RANKS" for name in unknown))
        why = f"the number of ranks is unknown: state --world-size {option}"
    elif runs[0].world_size == runs[1].world_size:
        return evidence
    elif differ:
        why = "; ".join(f"{key} is {getattr(runs[0], key)} and {getattr(runs[1], key)}" for key in differ)
    else:
        base, run = sorted(runs, key=lambda each: each.world_size or 0)
        named = replace(run, baseline_id=run.baseline_id or base.run_id)
        return replace(evidence, runs=tuple(named if each is run else each for each in evidence.runs))
    return replace(evidence, remarks=(*evidence.remarks, f"no scaling verdict of the two runs: {why}"))


_ALIKE = ("model", "dataset", "precision", "unit", "device", "hardware")
"""What a run and its baseline must have in common, as far as both tell."""

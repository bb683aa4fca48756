"""Evidence of several sources as one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from stepscope.diagnose.evidence import CellEvidence, Evidence
from stepscope.records.training import TrainingRun

_JOINED = (
    "sources", "runs", "cells", "comm", "records", "traces", "nccl", "flight", "memory", "hardware", "notes",
)  # fmt: skip


def join(parts: Sequence[Evidence]) -> Evidence:
    """All of ``parts``; a run_id that two have gets its source's name before it. A fact that differs is left out."""
    counts = Counter(run.run_id for part in parts for run in part.runs)
    parts = [
        _renamed(part, {i for i, n in counts.items() if n > 1}, f"{at}:") for at, part in enumerate(parts)
    ]
    joined: dict[str, Any] = {name: tuple(x for p in parts for x in getattr(p, name)) for name in _JOINED}
    return Evidence(
        **joined,
        calibration=_only([p.calibration for p in parts]),
        environment=_only([p.environment for p in parts]),
        topology=_only([p.topology for p in parts]),
    )


def _renamed(part: Evidence, clashing: set[str], fallback: str) -> Evidence:
    if not clashing:
        return part
    name = part.sources[0].path.name if part.sources else fallback

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


def _only(values: Sequence[Any]) -> Any:
    there = [value for value in values if value is not None]
    return there[0] if there and all(value == there[0] for value in there) else None

"""Runs of one matrix over time: what every cell took in each of them, and when it changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from stepscope.core.errors import Unavailable
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence
from stepscope.stats.change_point import ChangePoint, change_point

MIN_RUNS = 3
"""Runs that have a history: two are compared by `compare`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFolder:
    """One run folder. path: as ``TrainingRun.source``. created: when its machine was recorded, as ISO 8601."""

    name: str
    path: str
    created: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CellHistory:
    """One cell, or all of them. run: the newest of the cell, which names it; None: all cells.

    step_ns: of each run of the history, None where it has none; of all cells a ratio. change: over the runs that have it,
    the p-value of one cell times the number of cells (Bonferroni) unless all cells together changed (Fisher's protected
    test); Unavailable: too few runs. since: index of the first run
    after a significant change.
    """

    run: TrainingRun | None
    step_ns: tuple[float | None, ...]
    change: ChangePoint | Unavailable
    since: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Runs of the same matrix, oldest first. common: of every run the median over cells of step / the cell's median."""

    runs: tuple[RunFolder, ...]
    cells: tuple[CellHistory, ...]
    common: CellHistory


def history(evidence: Evidence) -> History | None:
    """The history of the cells that at least ``MIN_RUNS`` run folders have measured; None without such cells, and where
    they are of several machines.
    """
    created = {str(each.path): each.created for each in evidence.sources if each.created is not None}
    found: dict[str, dict[str, TrainingRun]] = {}
    for cell in evidence.cells:
        if cell.run.status == "ok" and cell.run.step_ns is not None and cell.run.source in created:
            found.setdefault(cell.cell_id, {})[cell.run.source] = cell.run
    kept = [by_source for by_source in found.values() if len(by_source) >= MIN_RUNS]
    if not kept or len({run.hardware for by_source in kept for run in by_source.values()}) > 1:
        return None
    sources = sorted(
        {source for by_source in kept for source in by_source}, key=lambda source: (created[source], source)
    )
    cells = tuple(_cell(by_source, sources) for by_source in kept)
    ratios = [[None if step is None else step / _middle(cell.step_ns) for step in cell.step_ns] for cell in cells]
    common = _changed(None, tuple(_middle(run) for run in zip(*ratios, strict=True)))
    if common.since is None:
        cells = tuple(_changed(cell.run, cell.step_ns, tests=len(cells)) for cell in cells)
    return History(
        runs=tuple(RunFolder(name=Path(source).name, path=source, created=created[source]) for source in sources),
        cells=cells,
        common=common,
    )


def _middle(values: Iterable[float | None]) -> float:
    return median(value for value in values if value is not None)


def _cell(by_source: Mapping[str, TrainingRun], sources: Sequence[str]) -> CellHistory:
    runs = [by_source.get(source) for source in sources]
    steps = tuple(None if run is None or run.step_ns is None else run.step_ns.value for run in runs)
    return _changed(next(run for run in reversed(runs) if run is not None), steps)


def _changed(run: TrainingRun | None, steps: tuple[float | None, ...], *, tests: int = 1) -> CellHistory:
    there = [number for number, step in enumerate(steps) if step is not None]
    found = change_point([step for step in steps if step is not None])
    if isinstance(found, Unavailable):
        return CellHistory(run=run, step_ns=steps, change=found, since=None)
    found = replace(found, p_value=min(1.0, found.p_value * tests))
    return CellHistory(run=run, step_ns=steps, change=found, since=there[found.at] if found.significant else None)

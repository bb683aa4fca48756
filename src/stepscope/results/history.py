"""Runs of one kind over time: run folders of one matrix, or tables of several days; what each took, and when it changed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence
from stepscope.stats.order import LEAST_CHANGE, ChangePoint, change_point

if TYPE_CHECKING:
    from stepscope.results.evidence import Evidence


MIN_RUNS = 3
"""Fewest runs that have a history: two are compared by `compare`."""


@record
class RunFolder:
    """One run folder. path: as ``TrainingRun.source``. created: when its machine was recorded, as ISO 8601."""

    name: str
    path: str
    created: str


@record
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


@record
class History:
    """Runs of the same matrix, oldest first. common: of every run the median over cells of step / the cell's median."""

    runs: tuple[RunFolder, ...]
    cells: tuple[CellHistory, ...]
    common: CellHistory


def history(evidence: Evidence) -> History | None:
    """Return the history of the cells that at least ``MIN_RUNS`` run folders measured; None without such cells, and where
    they are of several machines.
    """
    created = {str(source.path): source.created for source in evidence.sources if source.created is not None}
    by_cell: dict[str, dict[str, TrainingRun]] = {}
    for cell in evidence.cells:
        if cell.run.status == "ok" and cell.run.step_ns is not None and cell.run.source in created:
            by_cell.setdefault(cell.cell_id, {})[cell.run.source] = cell.run
    kept = [by_source for by_source in by_cell.values() if len(by_source) >= MIN_RUNS]
    if not kept or len({run.hardware for by_source in kept for run in by_source.values()}) > 1:
        return None
    sources = sorted(
        {source for by_source in kept for source in by_source}, key=lambda source: (created[source], source)
    )
    cells = tuple(_cell_history(by_source, sources) for by_source in kept)
    ratios = [[None if step is None else step / _known_median(cell.step_ns) for step in cell.step_ns] for cell in cells]
    common = _history_with_change(None, tuple(_known_median(run) for run in zip(*ratios, strict=True)))
    if common.since is None:
        cells = tuple(_history_with_change(cell.run, cell.step_ns, tests=len(cells)) for cell in cells)
    return History(
        runs=tuple(RunFolder(name=Path(source).name, path=source, created=created[source]) for source in sources),
        cells=cells,
        common=common,
    )


def _known_median(values: Iterable[float | None]) -> float:
    return median(value for value in values if value is not None)


def _cell_history(by_source: Mapping[str, TrainingRun], sources: Sequence[str]) -> CellHistory:
    """Return the step times of one cell, in order of the sources."""
    runs = [by_source.get(source) for source in sources]
    steps = tuple(None if run is None or run.step_ns is None else run.step_ns.value for run in runs)
    return _history_with_change(next(run for run in reversed(runs) if run is not None), steps)


def _history_with_change(run: TrainingRun | None, steps: tuple[float | None, ...], *, tests: int = 1) -> CellHistory:
    """Return the history of steps in ns, or ratios, with its change. tests: its p-value is that of one of so many."""
    there = [number for number, step in enumerate(steps) if step is not None]
    change = change_point([step for step in steps if step is not None])
    if isinstance(change, Unavailable):
        return CellHistory(run=run, step_ns=steps, change=change, since=None)
    change = replace(change, p_value=min(1.0, change.p_value * tests))
    return CellHistory(run=run, step_ns=steps, change=change, since=there[change.at] if change.significant else None)


_WHEN = re.compile(r"(?:^|[._ ])(?:date|day|night|timestamp)$", re.IGNORECASE)
_A_DATE = re.compile(r"\d{4}-\d\d-\d\d.*|\d{8}")


@record
class Nights:
    """Runs that differ in their day alone, oldest first, and the best place for a change of their time."""

    runs: tuple[TrainingRun, ...]
    days: tuple[str, ...]
    change: ChangePoint

    @property
    def since(self) -> int | None:
        """Index of the first run after a significant change of 5% or more."""
        large = abs(self.change.after / self.change.before - 1) >= LEAST_CHANGE
        return self.change.at if self.change.significant and large else None


def nights(runs: Iterable[TrainingRun]) -> tuple[Nights, ...]:
    """Return every series of finished runs of one table that state their day; series of too few runs are left out."""
    alike: dict[object, list[tuple[str, float, TrainingRun]]] = {}
    for run in runs:
        day, time = day_of(run), _unit_time(run)
        if run.status == "ok" and day is not None and time is not None:
            alike.setdefault((_table_file(run), _kind_key(run), time.unit), []).append((day, time.ns, run))
    series = []
    for members in alike.values():
        ordered = sorted(members, key=lambda member: member[0])
        change = change_point([time for _, time, _ in ordered])
        if not isinstance(change, Unavailable):
            days, _, same_runs = zip(*ordered, strict=True)
            series.append(Nights(runs=same_runs, days=days, change=change))
    return tuple(series)


def repeated(evidence: Evidence) -> dict[str, object]:
    """Return for each run_id what the run repeats, equal for runs of one kind: the cell of `bench`, in every run folder; of
    a table what its rows have in common beside their day. Runs that repeat nothing are left out, and rows that the day does
    not tell apart.
    """
    kinds: dict[str, object] = {cell.run.run_id: ("cell", cell.cell_id) for cell in evidence.cells}
    rows = [(run, day) for run in evidence.runs if run.run_id not in kinds and (day := day_of(run)) is not None]
    times = Counter((_table_file(run), _kind_key(run), day) for run, day in rows)
    return kinds | {
        run.run_id: ("day", _kind_key(run)) for run, day in rows if times[_table_file(run), _kind_key(run), day] == 1
    }


def _table_file(run: TrainingRun) -> str:
    return re.sub(r":\d+$", "", run.source)


def _kind_key(run: TrainingRun) -> tuple[object, ...]:
    return (
        run.group, run.model, run.dataset, run.world_size, run.strategy, run.precision, run.micro_batch, run.global_batch,
        run.accumulation, run.hardware,
    )  # fmt: skip


def day_of(run: TrainingRun) -> str | None:
    """The day on which a row's run was made; None where it states none."""
    texts = (str(value) for name, value in run.settings.items() if _WHEN.search(name))
    return next((text for text in texts if _A_DATE.fullmatch(text)), None)


class _UnitTime(NamedTuple):
    """Nanoseconds of one step, one sample (or what else the run counts) or one epoch."""

    unit: str
    ns: float


def _unit_time(run: TrainingRun) -> _UnitTime | None:
    """Return the time of the smallest unit that a run measures alone: a step, else a sample, else an epoch; None: no
    figure."""
    if run.step_ns is not None:
        return _UnitTime("step", run.step_ns.value)
    if run.samples_per_s is not None and run.samples_per_s.value > 0:
        return _UnitTime(run.unit, 1e9 / run.samples_per_s.value)
    return None if run.epoch_ns is None else _UnitTime("epoch", run.epoch_ns.value)

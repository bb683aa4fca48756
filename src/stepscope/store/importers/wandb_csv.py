"""CSV of Weights & Biases: of a chart (``Step``, ``RUN - METRIC``, ``...__MIN``, ``...__MAX``), or a run's history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.store.columns import require_meanings
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.tables import TextRow, TextTable, headers, read_tables
from stepscope.store.training_runs import LoggedStep, Scalars, joined, run_of, slug

_SHADOWS = ("__MIN", "__MAX")
_STEPS = ("step", "_step", "global_step", "trainer/global_step", "train/global_step")
_TIMES = ("relative time (wall)", "relative time (process)", "_runtime", "_timestamp")
_OVER_TIME = "the chart's x axis is time: rows count as steps, and step time is unknown"


def _knows_wandb(candidate: Candidate) -> bool:
    return any(_is_chart(names) or _is_history(names) for names in headers(candidate))


def _is_chart(names: Sequence[str]) -> bool:
    """Return whether it is a chart's export, which has every line three times: its mean, its least and its greatest."""
    return any(" - " in name and all(f"{name}{shadow}" in names for shadow in _SHADOWS) for name in names)


def _is_history(names: Sequence[str]) -> bool:
    """Return whether it is a run's history, not the table of runs, one row a run, whose ``_step`` is the last one."""
    return "Name" not in names and "_step" in names and any(name in names for name in ("_runtime", "_timestamp"))


def _read_exports(source: Candidate) -> Imported:
    """Read all exports; charts of one run are joined by step."""
    require_meanings(source.stated)
    parts, left_out = read_each(source, _knows_wandb, _read_export, suffixes=(".csv",))
    merged: dict[str, Scalars] = {}
    for scalars in (chart for part in parts for chart in part):
        first = merged.setdefault(scalars.run_id, scalars)
        if first is not scalars:
            first.points = _joined_by_step(first.points, scalars.points)
    runs = (run_of(run_scalars, source.stated.columns) for run_scalars in merged.values())
    return joined("wandb_csv", source, runs, left_out=left_out)


def _joined_by_step(one: Sequence[LoggedStep], other: Sequence[LoggedStep]) -> list[LoggedStep]:
    """Join the points of several charts of one run by step."""
    points = {point.step: point for point in one}
    for point in other:
        points.setdefault(point.step, LoggedStep(point.step, point.wall_s)).values.update(point.values)
    return [points[step] for step in sorted(points)]


def _read_export(path: Path) -> list[Scalars]:
    """Return the logged steps of each run of one export. Raises DataError where no column is of steps or times."""
    (table,) = read_tables(path)
    at_step, at_time = (
        next((i for i, name in enumerate(table.names) if name.lower() in names), None) for names in (_STEPS, _TIMES)
    )
    if at_step is None and at_time is None:
        raise DataError(
            f"{path}: no column of steps or times",
            why=f"the first column is {table.names[0]!r}",
            fix="choose Step as the chart's x axis and export it again",
        )
    history = _is_history(table.names)
    by_run = []
    for run, columns in _columns_by_run(table):
        points = [
            LoggedStep(
                step=number if at_step is None else row.step(at_step),
                wall_s=None if at_time is None or at_step is None else _cell_figure(row, at_time, history),
                values=values,
            )
            for number, row in enumerate(table.rows)
            if (
                values := {
                    name: value
                    for index, name in columns.items()
                    if (value := _cell_figure(row, index, history)) is not None
                }
            )
        ]
        if points:
            by_run.append(
                Scalars(
                    source=str(path),
                    run_id=slug(run) or path.stem,
                    group=path.absolute().parent.name,
                    points=sorted(points, key=lambda point: point.step),
                    notes=() if at_step is not None else (_OVER_TIME,),
                    unread=table.notes,
                )
            )
    if not by_run:
        raise DataError(f"{path}: no figure under its header", fix="export the chart again")
    return by_run


def _cell_figure(row: TextRow, index: int, history: bool) -> float | None:
    """Return a number, None for a text: a history logs any, a chart those of runs that logged nothing."""
    return row.figure(index, words=history or not any(map(str.isdigit, row.cells[index])))


def _columns_by_run(table: TextTable) -> Iterator[tuple[str, dict[int, str]]]:
    """Yield (run, index -> metric) of every run; a run's name may hold `` - `` itself."""
    if _is_history(table.names):
        yield table.source.stem, {i: name for i, name in enumerate(table.names) if name and not name.startswith("_")}
        return
    runs: dict[str, dict[int, str]] = {}
    for index, name in enumerate(table.names):
        run, dash, metric = name.rpartition(" - ")
        if dash and not metric.endswith(_SHADOWS) and metric not in ("_step", "_timestamp", "_runtime"):
            runs.setdefault(run, {})[index] = metric
    yield from runs.items()


IMPORTER = Importer(
    title="CSV export of Weights & Biases",
    recognises=_knows_wandb,
    read_files=_read_exports,
    rank=70,
    suffixes=(".csv", ".tsv", ".txt"),
)

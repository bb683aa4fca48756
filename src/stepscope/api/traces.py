"""The traces at a path: the path itself, the folder of one cell of a run, or a window of a profiled job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from stepscope.core.errors import DataError, UsageError
from stepscope.core.words import counted, named
from stepscope.store.layout import ProfileLayout, RunLayout


def traces_of(given: str, cell: str | None, log: Callable[[str], object] = str) -> list[str]:
    """Return the path itself, the trace folder of one cell when it is a run folder, or the last window of a profiled job.

    log: takes what is to be known of the choice."""
    profiled = ProfileLayout(Path(given))
    if profiled.is_there:
        return [str(_window(profiled, cell, log))]
    layout = RunLayout(Path(given))
    if not layout.is_there:
        if cell is not None:
            raise UsageError(f"--cell {cell!r}: {given} is not a run folder of `stepscope bench`")
        return [given]
    traced = {
        folder.parent.name: folder for folder in sorted(layout.root.glob("cells/*/trace")) if any(folder.iterdir())
    }
    if not traced:
        raise DataError(
            f"{given}: this run has no traces",
            why="its cells were not profiled",
            fix=f"run `stepscope bench ... -o {given} --profile`: three profiled steps per cell",
        )
    if cell is not None:
        matches = named(cell, traced)
        if len(matches) != 1:
            raise UsageError(
                f"--cell {cell!r} names {counted(len(matches), 'traced cell')}", fix=_cells(layout, traced)
            )
        return [str(traced[matches[0]])]
    if len(traced) > 1:
        raise UsageError(f"{given}: traces of {counted(len(traced), 'cell')}", fix=_cells(layout, traced))
    return [str(folder) for folder in traced.values()]


def _window(layout: ProfileLayout, number: str | None, log: Callable[[str], object]) -> Path:
    """Return the folder of one window of a profiled job: the last, or the one that --cell names."""
    windows = {str(window): layout.traces(window) for window in layout.windows()}
    if not windows:
        import shlex  # only an error needs them

        from stepscope.store.reader import steps_in

        if any(steps_in(path) for path in layout.diaries()):
            raise DataError(
                f"{layout.root}: no window left a trace",
                why="the steps of this job were timed, and none was profiled",
                fix="`stepscope profile -- COMMAND` records some; "
                f"stepscope diagnose {shlex.quote(str(layout.root))} shows what the timed steps say",
            )
        raise DataError(f"{layout.root}: no window left a trace", fix="profile the job again")
    if number is None:
        if len(windows) > 1:
            log(f"{counted(len(windows), 'window')}: the last one is shown; --cell N shows another")
        return list(windows.values())[-1]
    if number not in windows:
        raise UsageError(f"--cell {number!r} names no window", fix=f"windows with traces: {', '.join(windows)}")
    return windows[number]


def _cells(layout: RunLayout, traced: dict[str, Path]) -> str:
    from stepscope.records.cell import CellSpec
    from stepscope.results.labels import cell_labels
    from stepscope.store.reader import read_if_there

    specs = {c: read_if_there(layout.cell(c).spec, CellSpec) for c in traced}
    cells = [spec for spec in specs.values() if spec is not None]
    labels = {s.cell_id: label.text for s, label in zip(cells, cell_labels(cells), strict=True)}
    lines = [f"    --cell {c}  {labels.get(c, '')}" for c in traced]
    return "\n".join(["choose one:", *lines])

"""The files of ``stepscope trace``: what a path stands for, and what is said while they are read."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from stepscope.cli.console import err
from stepscope.core.errors import DataError, UsageError
from stepscope.core.suggest import named
from stepscope.core.units import format_bytes
from stepscope.core.words import counted
from stepscope.store.layout import ProfileLayout, RunLayout

PROGRESS_AFTER_S = 2.0
TOLD_FROM_S = 3.0
"""Less than this to wait for needs no telling."""
LEARN_S, LEARN_SHARE = 0.7, 0.08
"""How long, and for what share of the bytes, the reading is watched before it is said how long the rest will take."""


def traces_of(given: str, cell: str | None) -> list[str]:
    """The path itself, the trace folder of one cell when it is a run folder, or the last window of a profiled job."""
    profiled = ProfileLayout(Path(given))
    if profiled.record.is_file():
        return [str(_window(profiled, cell))]
    layout = RunLayout(Path(given))
    if not layout.run.is_file():
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
        found = named(cell, traced)
        if len(found) != 1:
            raise UsageError(f"--cell {cell!r} names {counted(len(found), 'traced cell')}", fix=_cells(layout, traced))
        return [str(traced[found[0]])]
    if len(traced) > 1:
        raise UsageError(f"{given}: traces of {counted(len(traced), 'cell')}", fix=_cells(layout, traced))
    return [str(folder) for folder in traced.values()]


def _window(layout: ProfileLayout, number: str | None) -> Path:
    """Folder of one window of a profiled job: the last, or the one that --cell names."""
    windows = {str(window): layout.traces(window) for window in layout.windows()}
    if not windows:
        import shlex  # only an error needs them

        from stepscope.store.diary_tail import steps_in

        if any(steps_in(path) for path in layout.diaries()):
            raise DataError(
                f"{layout.root}: no window left a trace",
                why="the steps of this job were timed, and none was profiled",
                fix=f"stepscope diagnose {shlex.quote(str(layout.root))} shows what the timed steps say",
            )
        raise DataError(f"{layout.root}: no window left a trace", fix="profile the job again")
    if number is None:
        if len(windows) > 1:
            err().print(
                f"{counted(len(windows), 'window')}: the last one is shown; --cell N shows another", style="dim"
            )
        return list(windows.values())[-1]
    if number not in windows:
        raise UsageError(f"--cell {number!r} names no window", fix=f"windows with traces: {', '.join(windows)}")
    return windows[number]


def _cells(layout: RunLayout, traced: dict[str, Path]) -> str:
    from stepscope.records.cell import CellSpec
    from stepscope.results.labels import cell_labels
    from stepscope.store.reader import read_if_there

    specs = {c: read_if_there(layout.cell(c).spec, CellSpec) for c in traced}
    known = [spec for spec in specs.values() if spec is not None]
    labels = {s.cell_id: label.text for s, label in zip(known, cell_labels(known), strict=True)}
    lines = [f"    --cell {c}  {labels.get(c, '')}" for c in traced]
    return "\n".join(["choose one:", *lines])


class Watch:
    """On stderr, where reading takes long: how much longer, as its own beginning tells, and which ranks are done."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._sizes: dict[Path, int] = {}
        self._taken: dict[Path, int] = {}
        self._done = 0
        self._said = False

    def started(self, files: Sequence[Path]) -> None:
        self._sizes = {file: file.stat().st_size for file in files}

    def advanced(self, path: Path, taken: int) -> None:
        self._taken[path] = taken
        elapsed = time.monotonic() - self._start
        whole, read = sum(self._sizes.values()), sum(self._taken.values())
        if self._said or elapsed < LEARN_S or read < LEARN_SHARE * whole:
            return
        self._said = True
        left = elapsed * (whole / max(read, 1) - 1)
        if left >= TOLD_FROM_S:
            what = f"reading {counted(len(self._sizes), 'trace')}, {format_bytes(whole)}"
            err().print(f"{what}: about {left:.0f} s more", style="dim")

    def done(self, path: Path) -> None:
        self._done += 1
        self.advanced(path, self._sizes[path])
        if time.monotonic() - self._start > PROGRESS_AFTER_S and self._done < len(self._sizes):
            err().print(f"{self._done} of {len(self._sizes)} ranks read ({path.name})", style="dim")

    def end(self) -> None:
        if time.monotonic() - self._start > TOLD_FROM_S:
            err().print(f"read in {time.monotonic() - self._start:.1f} s", style="dim")

"""Event files of TensorBoard (``events.out.tfevents.*``): one run a folder, scalars by step."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from itertools import pairwise
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.core.words import counted
from stepscope.records.imported import Imported
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers._folders import holds_traces
from stepscope.store.importers._scalars import LoggedStep, Scalars, run_of
from stepscope.store.importers._stated_columns import require_meanings
from stepscope.store.importers._tfevents import Scalar, scalars_of
from stepscope.store.importers._training import imported_runs, slug

MARK = "tfevents"
_OTHER_AXIS = re.compile(r" vs \w+$")
"""Megatron charts every figure a second time over the samples or tokens seen: ``lm loss vs samples``."""


def _recognises(candidate: Candidate) -> bool:
    return any(MARK in file.name for file in candidate.files) and not (candidate.is_folder and holds_traces(candidate))


def _read(source: Candidate) -> Imported:
    path = source.path
    folders: dict[Path, list[Path]] = {}
    for file in source.files:
        if MARK in file.name:
            folders.setdefault(file.parent, []).append(file)
    notes: list[str] = []
    require_meanings(source.stated)
    found = [each for folder, files in folders.items() if (each := _logged(path, folder, files, notes)) is not None]
    if not found:
        raise DataError(f"{path}: no scalar in its event files", why="; ".join(notes) or "nothing was logged")
    runs = (run_of(each, source.stated.columns) for each in found)
    return imported_runs(
        "tensorboard", source, runs, notes=notes, columns=(name for each in found for name in each.names)
    )


def _logged(root: Path, folder: Path, files: Sequence[Path], notes: list[str]) -> Scalars | None:
    """None where the folder's files hold no scalar."""
    logs = [log for file in files if (log := _scalars(file, notes))]
    if not logs:
        return None
    logs.sort(key=lambda log: log[0].wall_s)
    began_again = [at for at, (before, log) in enumerate(pairwise(logs), 1) if log[0].wall_s > before[-1].wall_s]
    name = folder.name if folder == root or root.is_file() else folder.relative_to(root).as_posix()
    more = [f"{counted(len(logs), 'event file')}: the job was restarted; later steps count"] if began_again else []
    if len(began_again) < len(logs) - 1:
        more.append("event files were written at the same time: of a figure in several, the first file's counts")
    return Scalars(
        source=str(folder),
        run_id=slug(name) or "run",
        group=root.name if folder != root and root.is_dir() else name,
        points=_points(logs, began_again),
        notes=more,
    )


def _scalars(file: Path, notes: list[str]) -> list[Scalar]:
    found = []
    for each in scalars_of(file):
        if isinstance(each, str):
            notes.append(each)
        elif not _OTHER_AXIS.search(each.tag):
            found.append(each)
    return found


def _points(logs: Sequence[Sequence[Scalar]], began_again: Container[int]) -> list[LoggedStep]:
    """By step: of a job that was started again, what an earlier one logged at the same steps and later is dropped."""
    points: dict[int, LoggedStep] = {}
    for at, log in enumerate(logs):
        if at in began_again:
            first = min(scalar.step for scalar in log)
            points = {step: point for step, point in points.items() if step < first}
        written = {(step, tag) for step, point in points.items() for tag in point.values}
        for scalar in log:
            if (scalar.step, scalar.tag) in written:
                continue
            point = points.setdefault(scalar.step, LoggedStep(scalar.step, scalar.wall_s))
            point.values[scalar.tag] = scalar.value
    return [points[step] for step in sorted(points)]


IMPORTER = Importer(title="event files of TensorBoard", recognises=_recognises, read_files=_read, rank=35)

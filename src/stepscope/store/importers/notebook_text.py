"""Text that benchmark notebooks print: strategies compared on one and two GPUs, and tensor parallelism."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.comm import CommRow
from stepscope.records.imported import Imported, Stated
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate, Importer
from stepscope.store.importers import _mode_tables as modes
from stepscope.store.importers import _tensor_parallel_text as tensor_parallel
from stepscope.store.importers._folders import read_each, recognises_any
from stepscope.store.importers._texts import read_text
from stepscope.store.importers._training import with_unique_ids
from stepscope.store.stated import with_stated

_SUFFIXES = (".txt", ".log", ".out")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Text:
    """One text. rows: of the comparison of strategies, which other texts may tell more of."""

    rows: tuple[modes.ModeRow, ...]
    gpu: str | None
    runs: tuple[TrainingRun, ...]
    comm: tuple[CommRow, ...]


def _knows(candidate: Candidate) -> bool:
    return modes.known(candidate.text) or tensor_parallel.known(candidate.text)


def _recognises(candidate: Candidate) -> bool:
    return recognises_any(candidate, _knows, suffixes=_SUFFIXES)


def _read(path: Path, stated: Stated) -> Imported:
    parts, notes = read_each(path, _knows, _read_file, suffixes=_SUFFIXES)
    gpus = {part.gpu for part in parts if part.gpu}
    gpu = gpus.pop() if len(gpus) == 1 else None
    compared = modes.runs_of([row for part in parts for row in part.rows], gpu=gpu)
    runs = with_unique_ids((*compared, *(run for part in parts for run in part.runs)))
    return Imported(
        format="notebook_text",
        path=str(path),
        runs=with_stated(runs, stated),
        comm_rows=tuple(row for part in parts for row in part.comm),
        hardware=gpu,
        notes=notes,
    )


def _read_file(path: Path) -> _Text:
    text = read_text(path)
    part = _Text(
        rows=modes.rows_of(path, text),
        gpu=modes.gpu_of(text),
        runs=tensor_parallel.runs_of(path, text),
        comm=tensor_parallel.comm_rows_of(path, text),
    )
    if not part.rows and not part.runs and not part.comm:
        raise DataError(f"{path}: a table's header and no rows", why="the text was cut", fix="copy it again")
    return part


IMPORTER = Importer(title="tables that benchmark notebooks print", recognises=_recognises, read=_read, rank=30)

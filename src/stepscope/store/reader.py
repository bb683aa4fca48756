"""Reading a run folder back into records, ``calib.json``, and how far the step diary of a running job has got."""

from __future__ import annotations

import math
import re
import stat
import struct
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import msgspec

from stepscope.core.errors import DataError
from stepscope.records import codec
from stepscope.records.calibration import Calibration
from stepscope.records.cell import CellSpec, CellStatus, RunRecord
from stepscope.records.comm import CommHeader, CommSample
from stepscope.records.profile import RECORD
from stepscope.records.samples import CellResult, RankCommSamples, RankSamples, RankSummary, SamplesHeader, StepSample
from stepscope.store.layout import CellLayout, RunLayout

T = TypeVar("T")
L = TypeVar("L")
_RANK = re.compile(r"-(\d{5})")


def read_bytes(path: Path) -> bytes:
    """What the file holds. Raises DataError for what cannot be read: a pipe would be waited for without end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"cannot read {path}", why="it is a folder, a device, a pipe or a socket")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}", why=error.strerror or str(error)) from error


def read_record(path: Path, kind: type[T]) -> T:
    return codec.decode(read_bytes(path), kind, source=str(path))


def read_if_there(path: Path, kind: type[T]) -> T | None:
    """The record, or None when the file does not exist. A damaged file is still an error."""
    return read_record(path, kind) if path.exists() or path.is_symlink() else None


def read_created(path: Path) -> str | None:
    """When a record was written (UTC, ISO 8601); None where it does not say. Raises DataError as ``read_record``."""
    try:
        found = msgspec.json.decode(read_bytes(path), type=dict[str, Any]).get("created")
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: not readable as JSON", why=str(error)) from error
    return found if isinstance(found, str) else None


def read_run(root: Path) -> RunRecord:
    layout = RunLayout(root)
    if not layout.run.is_file():
        raise DataError(
            f"{root} is not a run folder",
            why="it has no run.json",
            fix="pass the folder that `stepscope bench` or `stepscope comm` printed",
        )
    return read_record(layout.run, RunRecord)


def read_cells(layout: RunLayout) -> tuple[CellSpec, ...]:
    """Specs of all cells of a run folder: the matrix in its order, then earlier ones that are not in it any more."""
    run = read_record(layout.run, RunRecord)
    cell_ids = (*run.cells, *run.earlier_cells)
    return tuple(read_record(layout.cell(cell_id).spec, CellSpec) for cell_id in cell_ids)


def read_samples(path: Path) -> RankSamples | None:
    """One rank's samples; None when the rank died before it wrote the header."""
    found = _headed(path, SamplesHeader, StepSample)
    return None if found is None else RankSamples(header=found[0], steps=found[1])


def read_comm_samples(path: Path) -> RankCommSamples | None:
    """One rank's samples of a comm cell; None when there is no file or the rank died before it wrote the header."""
    found = _headed(path, CommHeader, CommSample) if path.exists() else None
    return None if found is None else RankCommSamples(header=found[0], samples=found[1])


def _headed(path: Path, header: type[T], line: type[L]) -> tuple[T, tuple[L, ...]] | None:
    """The record on the first line, and those of all others; None without a whole first line."""
    head, newline, body = read_bytes(path).partition(b"\n")
    if not newline:
        return None
    return codec.decode(head, header, source=f"{path}:1"), tuple(codec.decode_lines(body, line, source=str(path)))


def read_cell(layout: CellLayout) -> CellResult:
    samples = (read_samples(path) for path in sorted(layout.root.glob("samples-*.jsonl")))
    return CellResult(
        spec=read_record(layout.spec, CellSpec),
        status=read_if_there(layout.status, CellStatus),
        samples=tuple(s for s in samples if s is not None),
        summaries=tuple(read_record(p, RankSummary) for p in sorted(layout.root.glob("rank-*.json"))),
    )


def rank_of(path: Path) -> int:
    """The rank in a per-rank file's name."""
    match = _RANK.search(path.name)
    if match is None:
        raise DataError(f"{path} has no rank in its name")
    return int(match[1])


def read_calibration(file: Path) -> Calibration:
    """Raises DataError when there is none, or one without a curve to read times from."""
    try:
        data = read_bytes(file)
    except DataError as error:
        raise DataError(error.what, why=error.why, fix="`stepscope calibrate RUN` writes one") from error
    if file.suffix == ".jsonl":
        raise DataError(
            f"{file} is not a calibration",
            why="it holds a run's results",
            fix=f"`stepscope calibrate {file.parent}` makes {file.parent / 'calib.json'}",
        )
    calibration = codec.decode(data, Calibration, source=str(file))
    for number, fit in enumerate(calibration.fits, start=1):
        if not fit.curve.knots or any(knot.time_ns <= 0 for knot in fit.curve.knots):
            raise DataError(
                f"{file}: fit {number} ({fit.op} on {fit.world_size} ranks) has no curve",
                why="its points are missing, or have no time",
                fix="`stepscope calibrate RUN` writes it again",
            )
    return calibration


RECORD_BYTES = struct.calcsize(RECORD)
HEADER_AT_MOST = 64 << 10
LATEST = 64


def header_bytes(path: Path) -> int | None:
    """Bytes of a diary's first line with its end; None while it is not written."""
    with path.open("rb") as file:
        head = file.read(HEADER_AT_MOST)
    length = head.find(b"\n") + 1
    return length or None


def steps_in(path: Path, header: int | None = None) -> int:
    """Whole records. header: ``header_bytes`` of this file, where it is known."""
    header = header or header_bytes(path)
    return 0 if header is None else max(path.stat().st_size - header, 0) // RECORD_BYTES


def latest_step_ns(path: Path) -> float | None:
    """Median time of the last steps; None without any."""
    header = header_bytes(path)
    if header is None or not (steps := steps_in(path, header)):
        return None
    first = max(steps - LATEST, 0)
    with path.open("rb") as file:
        file.seek(header + first * RECORD_BYTES)
        data = file.read((steps - first) * RECORD_BYTES)
    times = [whole for whole, *_ in struct.iter_unpack(RECORD, data[: len(data) // RECORD_BYTES * RECORD_BYTES])]
    known = [each for each in times if not math.isnan(each)]
    return median(known) if known else None

"""Reading a run folder back into records, ``calib.json``, and how far the step diary of a running job has got.

JSON as Python programs write it: with NaN and Infinity, which are no figures; every complaint names file and place.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import msgspec

from stepscope.core.errors import DataError
from stepscope.records import codec
from stepscope.records.calibration import Calibration
from stepscope.records.cell import CellSpec, CellStatus, RunRecord
from stepscope.records.comm import CommHeader, CommSample
from stepscope.records.profile import FIRST_COLUMNS, RECORD
from stepscope.records.samples import CellResult, RankCommSamples, RankSamples, RankSummary, SamplesHeader, StepSample
from stepscope.store.layout import CellLayout, RunLayout

T = TypeVar("T")
L = TypeVar("L")
_RANK = re.compile(r"-(\d{5})")


def read_bytes(path: Path) -> bytes:
    """Read a file. Raises DataError for what cannot be read; a pipe is refused, which would be waited for without end."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise DataError(f"cannot read {path}", why="it is a folder, a device, a pipe or a socket")
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}", why=error.strerror or str(error)) from error


def read_record(path: Path, kind: type[T]) -> T:
    return codec.decode(read_bytes(path), kind, source=str(path))


def read_if_there(path: Path, kind: type[T]) -> T | None:
    """Read the record, or return None when the file does not exist. A damaged file is still an error."""
    return read_record(path, kind) if path.exists() or path.is_symlink() else None


def read_created(path: Path) -> str | None:
    """Return when a record was written (UTC, ISO 8601); None where it does not say. Raises DataError as ``read_record``."""
    try:
        created = msgspec.json.decode(read_bytes(path), type=dict[str, Any]).get("created")
    except msgspec.DecodeError as error:
        raise DataError(f"{path}: not readable as JSON", why=str(error)) from error
    return created if isinstance(created, str) else None


def read_run(root: Path) -> RunRecord:
    """Return the record of a run folder. Raises DataError for any other folder."""
    layout = RunLayout(root)
    if not layout.is_there:
        raise DataError(
            f"{root} is not a run folder",
            why="it has no run.json of stepscope",
            fix="pass the folder that `stepscope bench` or `stepscope comm` printed",
        )
    return read_record(layout.run, RunRecord)


def read_cells(layout: RunLayout) -> tuple[CellSpec, ...]:
    """Read the specs of all cells of a run folder: the matrix in its order, then earlier ones that are no longer in it."""
    run = read_record(layout.run, RunRecord)
    cell_ids = (*run.cells, *run.earlier_cells)
    return tuple(read_record(layout.cell(cell_id).spec, CellSpec) for cell_id in cell_ids)


def read_samples(path: Path) -> RankSamples | None:
    """Read one rank's samples; None when the rank died before it wrote the header."""
    parts = _header_and_lines(path, SamplesHeader, StepSample)
    return None if parts is None else RankSamples(header=parts[0], steps=parts[1])


def read_comm_samples(path: Path) -> RankCommSamples | None:
    """Read one rank's samples of a comm cell; None when there is no file or the rank died before it wrote the header."""
    parts = _header_and_lines(path, CommHeader, CommSample) if path.exists() else None
    return None if parts is None else RankCommSamples(header=parts[0], samples=parts[1])


def _header_and_lines(path: Path, header: type[T], line: type[L]) -> tuple[T, tuple[L, ...]] | None:
    """Read the record on the first line, and those of all others; None without a whole first line."""
    head, newline, body = read_bytes(path).partition(b"\n")
    if not newline:
        return None
    return codec.decode(head, header, source=f"{path}:1"), tuple(codec.decode_lines(body, line, source=str(path)))


def read_cell(layout: CellLayout) -> CellResult:
    """Return a cell's spec, status, samples and summaries, of the ranks that left them."""
    samples = (read_samples(path) for path in sorted(layout.root.glob("samples-*.jsonl")))
    return CellResult(
        spec=read_record(layout.spec, CellSpec),
        status=read_if_there(layout.status, CellStatus),
        samples=tuple(s for s in samples if s is not None),
        summaries=tuple(read_record(p, RankSummary) for p in sorted(layout.root.glob("rank-*.json"))),
    )


def rank_of(path: Path) -> int:
    """Return the rank in a per-rank file's name. Raises DataError."""
    match = _RANK.search(path.name)
    if match is None:
        raise DataError(f"{path} has no rank in its name")
    return int(match[1])


def read_calibration(file: Path) -> Calibration:
    """Read a calibration. Raises DataError when there is none, or one without a curve to read times from."""
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


HEADER_AT_MOST = 64 << 10
LATEST, LONGEST_OF = 64, 10_000


def header_bytes(path: Path) -> int | None:
    """Return the bytes of a diary's first line with its end; None while it is not written."""
    with path.open("rb") as file:
        head = file.read(HEADER_AT_MOST)
    length = head.find(b"\n") + 1
    return length or None


def steps_in(path: Path, header: int | None = None) -> int:
    """Count the whole records of a diary. header: ``header_bytes`` of this file, where it is known."""
    header = header or header_bytes(path)
    return 0 if header is None else max(path.stat().st_size - header, 0) // _record_layout(path, header)[0].size


@lru_cache(maxsize=1 << 14)
def _record_layout(path: Path, header: int) -> tuple[struct.Struct, tuple[str, ...]]:
    """Return the layout of a diary's record and the names of its first columns. header: bytes of it, which never change."""
    with path.open("rb") as file:
        head = file.read(header)
    try:
        columns = tuple(json.loads(head).get("columns", FIRST_COLUMNS))
        if {"whole_ns", "outside_ns"} <= {*columns}:
            return struct.Struct(RECORD.format(len(columns))), columns
    except ValueError:
        pass
    return struct.Struct(
        RECORD.format(len(FIRST_COLUMNS))
    ), FIRST_COLUMNS  # the reader of all says what is wrong with it


def records_at_end(path: Path, begin: int, size: int, most: int) -> bytes:
    """Read the last whole records of a file, at most so many; one cut short is left out. begin: where the first one is."""
    with path.open("rb", buffering=0) as file:
        there = max(os.fstat(file.fileno()).st_size - begin, 0) // size
        first = max(there - most, 0)
        data = os.pread(file.fileno(), (there - first) * size, begin + first * size)
    return data[: len(data) // size * size]


def _last_steps(path: Path, most: int, *, first: int = 0) -> list[tuple[float, float]]:
    """Return (whole, outside) of the last steps, at most so many, ns. first: steps at the begin that do not count."""
    if (header := header_bytes(path)) is None:
        return []
    record, columns = _record_layout(path, header)
    data = records_at_end(path, header, record.size, max(min(most, steps_in(path, header) - first), 0))
    whole, outside = columns.index("whole_ns"), columns.index("outside_ns")
    return [(step[whole], step[outside]) for step in record.iter_unpack(data)]


def latest_step_ns(path: Path) -> float | None:
    """Return the median time of the last steps; None without any."""
    timed = [whole for whole, _ in _last_steps(path, LATEST) if not math.isnan(whole)]
    return median(timed) if timed else None


def longest_step_ns(path: Path, *, first: int) -> float:
    """Return the longest of the last steps, without what lies outside of them and without the ``first`` ones; 0.0: none."""
    steps = _last_steps(path, LONGEST_OF, first=first)
    return max((whole - (outside if outside > 0 else 0.0) for whole, outside in steps), default=0.0)


MAX_BYTES = 256 << 20
"""Most bytes of a document, more than any result file of a benchmark has (a few KB a run)."""


def read_json(path: Path) -> Any:
    """Read a document; NaN and Infinity become floats that ``finite`` refuses. Raises DataError with line and column, and
    for a file that no benchmark writes: its JSON would not fit into memory."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise DataError(f"cannot read {path}", why=error.strerror or str(error)) from error
    if size > MAX_BYTES:
        raise DataError(
            f"{path}: too large for a file of results",
            why=f"{size} bytes, and {MAX_BYTES} are the limit",
            fix="pass the benchmark's own JSON",
        )
    data = read_bytes(path)
    try:
        return json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DataError(f"{path}:{line}: not UTF-8 text", why=f"byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path}:{error.lineno}:{error.colno}: not readable as JSON",
            why=_why_damaged(data, error),
            fix="copy the file again, or write it again with the tool that created it",
        ) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not readable as JSON", why=str(error) or type(error).__name__) from error


def finite(value: Any) -> float | None:
    """Return a finite number as float; None for everything else, truth values included."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def positive(value: Any) -> float | None:
    """Return a finite number above 0, else None."""
    number = finite(value)
    return number if number is not None and number > 0 else None


def count(value: Any) -> int | None:
    """Return a whole number of 1 or more, else None."""
    number = whole(value)
    return number if number is not None and number >= 1 else None


def whole(value: Any) -> int | None:
    """Return a whole number, also one that a program wrote as 8.0; else None."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def amount(value: Any) -> float | None:
    """Return a finite number of 0 or more, else None."""
    number = finite(value)
    return number if number is not None and number >= 0 else None


def _natural_number(value: Any) -> int | None:
    number = whole(value)
    return number if number is not None and 0 <= number < 2**62 else None


def _kind_filter(kind: type[T]) -> Callable[[Any], T | None]:
    return lambda value: value if isinstance(value, kind) else None


def _object_list(value: Any) -> list[dict[str, Any]] | None:
    return value if isinstance(value, list) and all(isinstance(entry, dict) for entry in value) else None


def _why_damaged(data: bytes, error: json.JSONDecodeError) -> str:
    """Say why a text is no JSON: empty, zero bytes, cut off, or what the parser says."""
    if not data.strip():
        return "the file is empty"
    if not data.strip(b"\0"):
        return "it holds nothing but zero bytes: it was created but never written"
    if error.pos >= len(error.doc.rstrip()):
        return "it ends in the middle of a value: it was cut off"
    return error.msg


@dataclass(frozen=True, slots=True)
class Fields:
    """One object of a JSON file. at: where it stands in there (``results[3].memory``), empty for the whole."""

    source: str
    values: Mapping[str, Any]
    at: str = ""

    def positive(self, key: str) -> float:
        """Return a finite number above 0."""
        return self._checked(key, positive, "a number above 0")

    def amount(self, key: str) -> float:
        """Return a finite number, 0 or more."""
        return self._checked(key, amount, "a number, 0 or more")

    def whole(self, key: str) -> int:
        """Return a whole number, 0 or more; also written as 8.0."""
        return self._checked(key, _natural_number, "a whole number, 0 or more")

    def count(self, key: str) -> int:
        """Return a whole number of 1 or more."""
        return self._checked(key, count, "a whole number of 1 or more")

    def text(self, key: str) -> str:
        return self._checked(key, _kind_filter(str), "a text")

    def part(self, key: str) -> Fields:
        """Return an object inside this one."""
        return Fields(self.source, self._checked(key, _kind_filter(dict), "an object"), self._path(key))

    def parts(self, key: str) -> tuple[Fields, ...]:
        """Return a list of objects."""
        entries = self._checked(key, _object_list, "a list of objects")
        return tuple(Fields(self.source, entry, f"{self._path(key)}[{i}]") for i, entry in enumerate(entries))

    def maybe(self, how: Callable[[str], T], key: str) -> T | None:
        """Return ``how(key)``, or None where the key is missing or null."""
        return None if self.values.get(key) is None else how(key)

    def plain(self, *keys: str) -> dict[str, Any]:
        """Return those of the keys that are there and hold a text, a number or a truth value."""
        return {key: self.values[key] for key in keys if isinstance(self.values.get(key), str | int | float | bool)}

    def _checked(self, key: str, check: Callable[[Any], T | None], expected: str) -> T:
        """Return what ``check`` makes of a value. Raises DataError where there is none, or it is not what it has to be."""
        value = check(self.values.get(key))
        if value is not None:
            return value
        what, why = f"{self._path(key)} is {_short_repr(self.values.get(key))}", f"expected {expected}"
        if key not in self.values:
            has = ", ".join(list(self.values)[:8])
            what, why = f"no {self._path(key)}", f"there are: {has}" if has else "the object is empty"
        raise DataError(f"{self.source}: {what}", why=why, fix="write the file again with the tool that created it")

    def _path(self, key: str) -> str:
        return f"{self.at}.{key}" if self.at else key


def read_fields(path: Path) -> Fields:
    """The JSON object in a file. Raises DataError where it is damaged, far too large, or holds something else."""
    document = read_json(path)
    if not isinstance(document, dict):
        raise DataError(f"{path}: holds no JSON object", why=f"it holds {_short_repr(document)}")
    return Fields(str(path), document)


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."

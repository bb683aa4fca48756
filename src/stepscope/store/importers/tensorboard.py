"""Event files of TensorBoard (``events.out.tfevents.*``): one run a folder, scalars by step.

Records are framed as TFRecord, each a protocol buffer ``Event``, of which only what scalars need is read: wall time, step,
tag and value, plain or as a tensor of one number (docs/decisions/0012).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError
from stepscope.core.words import counted, grouped
from stepscope.records.imported import Imported
from stepscope.store.columns import require_meanings
from stepscope.store.importer import Candidate, Importer
from stepscope.store.training_runs import LoggedStep, Scalars, joined, run_of, slug

MAX_RECORD = 64 << 20
_HEAD = struct.Struct("<QI")
_TENSORS = {1: "<f", 2: "<d", 3: "<i", 9: "<q"}
"""DataType -> format of one number: float32, float64, int32, int64."""


@dataclass(frozen=True, slots=True)
class Scalar:
    wall_s: float
    step: int
    tag: str
    value: float


def scalars_of(path: Path) -> Iterator[Scalar | str]:
    """Yield every scalar in order; last, of a damaged file, a sentence on what could not be read. Raises DataError."""
    try:
        with path.open("rb") as file:
            while head := file.read(_HEAD.size):
                at = file.tell() - len(head)
                body = _record_body(head, file.read)
                if body is None:
                    yield f"{path}: cut or damaged at byte {at}: the rest is not read"
                    return
                yield from _event_scalars(body)
    except OSError as error:
        raise DataError(f"cannot read {path}", why=error.strerror or str(error)) from error
    except (ValueError, struct.error, IndexError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: not an event file of TensorBoard", why=str(error)) from error


def _record_body(head: bytes, read: Callable[[int], bytes]) -> bytes | None:
    """Read the record that the head announces; None where either is cut or fails its checksum."""
    if len(head) < _HEAD.size:
        return None
    length, check = _HEAD.unpack(head)
    if length > MAX_RECORD or _masked_crc(head[:8]) != check:
        return None
    body = read(length + 4)
    if len(body) < length + 4 or _masked_crc(body[:length]) != struct.unpack("<I", body[length:])[0]:
        return None
    return body[:length]


def _event_scalars(data: bytes) -> Iterator[Scalar]:
    """Yield the scalars of one event."""
    event = _message_fields(data)
    (wall_s,), step = struct.unpack("<d", event[1][-1]) if 1 in event else (0.0,), event.get(2, [0])[-1]
    for value in _message_fields(event.get(5, [b""])[-1]).get(1, []):
        fields = _message_fields(value)
        number = struct.unpack("<f", fields[2][-1])[0] if 2 in fields else None
        if 8 in fields:
            number = _tensor_number(_message_fields(fields[8][-1]))
        if number is not None:  # images, histograms and texts have none
            yield Scalar(wall_s, step, fields.get(1, [b""])[-1].decode(), number)


def _tensor_number(fields: dict[int, list[Any]]) -> float | None:
    """Read the only number of a TensorProto; None for anything larger, or of another type."""
    form = _TENSORS.get(fields.get(1, [0])[-1])
    content = next((fields[at][-1] for at in (6, 5, 4) if at in fields), b"")
    if form is None or struct.calcsize(form) != len(content) or 2 in _message_fields(fields.get(2, [b""])[-1]):
        return None
    return float(struct.unpack(form, content)[0])


def _message_fields(data: bytes) -> dict[int, list[Any]]:
    """Return the values of every field of a message: varints as int, the others as bytes. Raises ValueError."""
    fields: dict[int, list[Any]] = {}
    at = 0
    while at < len(data):
        key, at = _varint_and_end(data, at)
        kind = key & 7
        if kind not in (0, 1, 2, 5):
            raise ValueError(f"wire type {kind} in a protocol buffer")
        value, start = _varint_and_end(data, at) if kind in (0, 2) else (8 if kind == 1 else 4, at)
        at = start if kind == 0 else start + value
        if at > len(data):
            raise ValueError("a field is longer than its message")
        fields.setdefault(key >> 3, []).append(value if kind == 0 else data[start:at])
    return fields


def _varint_and_end(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint, return (number, where it ends); a negative one as the 64-bit two's complement that it is."""
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return (value - (1 << 64) if value >> 63 else value), at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


_CRC = list(range(256))
for _ in range(8):
    _CRC = [value >> 1 ^ (0x82F63B78 if value & 1 else 0) for value in _CRC]


def _masked_crc(data: bytes) -> int:
    """Return the CRC-32C as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC[(crc ^ byte) & 255] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


MARK = "tfevents"
_OTHER_AXIS = re.compile(r" vs \w+$")
"""Megatron charts every figure a second time over the samples or tokens seen: ``lm loss vs samples``."""


def _recognises_events(candidate: Candidate) -> bool:
    return MARK in candidate.path.name


def _read_event_files(source: Candidate) -> Imported:
    """Read the run of each folder. Raises DataError where no file holds a scalar."""
    path = source.path
    folders = grouped((file for file in source.files if MARK in file.name), lambda file: file.parent)
    notes: list[str] = []
    require_meanings(source.stated)
    runs_logged = [
        logged
        for folder, files in folders.items()
        if (logged := _folder_scalars(path, folder, files, notes)) is not None
    ]
    if not runs_logged:
        raise DataError(f"{path}: no scalar in its event files", why="; ".join(notes) or "nothing was logged")
    damaged = Imported(format="tensorboard", path=str(path), notes=tuple(notes))
    runs = (run_of(scalars, source.stated.columns) for scalars in runs_logged)
    return joined("tensorboard", source, (damaged, *runs))


def _folder_scalars(root: Path, folder: Path, files: Sequence[Path], notes: list[str]) -> Scalars | None:
    """Read the run of one folder; None where its files hold no scalar."""
    logs = [log for file in files if (log := _step_scalars(file, notes))]
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
        points=_joined_points(logs, began_again),
        notes=more,
    )


def _step_scalars(file: Path, notes: list[str]) -> list[Scalar]:
    """Return the scalars of a file whose axis is the step; damage is noted."""
    scalars = []
    for scalar in scalars_of(file):
        if isinstance(scalar, str):
            notes.append(scalar)
        elif not _OTHER_AXIS.search(scalar.tag):
            scalars.append(scalar)
    return scalars


def _joined_points(logs: Sequence[Sequence[Scalar]], began_again: Container[int]) -> list[LoggedStep]:
    """Join logs by step: of a job that was started again, what an earlier one logged from the same step on is dropped."""
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


IMPORTER = Importer(
    title="event files of TensorBoard",
    recognises=_recognises_events,
    read_files=_read_event_files,
    rank=35,
    marks=("tfevents",),
)

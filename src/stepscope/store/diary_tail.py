"""How far a step diary has got, without reading it: for a job that runs."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from statistics import median

from stepscope.records.profile import RECORD

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

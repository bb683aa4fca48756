"""Samples of a job's hardware, as columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.records.hardware import HardwareHeader
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import HEADER_AT_MOST, records_at_end

SAMPLES_AT_MOST = 2_048
"""Last samples of a process that are read: half an hour, or nearly six hours of a job that has run for longer."""

PORTS_AT_MOST = 64
"""Samples of each host's ports that are read: the counters hold the whole since the first sample."""


@record
class HardwareSamples:
    """unix_s, step: [samples]; columns: name -> [samples, sources] as of the header; NaN: not known."""

    header: HardwareHeader
    unix_s: NDArray[np.float64]
    step: NDArray[np.float64]
    columns: Mapping[str, NDArray[np.float32]]


def read_ports(layout: ProfileLayout) -> tuple[HardwareSamples, ...]:
    """Read the samples of every process that sampled its host's ports. Raises DataError for a damaged header."""
    sampled = (read_hardware(path, last=PORTS_AT_MOST) for path in layout.port_samples())
    return tuple(samples for samples in sampled if samples is not None)


def read_hardware(path: Path, *, last: int = SAMPLES_AT_MOST) -> HardwareSamples | None:
    """Read the last samples; None where there is no file, or not yet its header. A record cut short is left out."""
    try:
        with path.open("rb", buffering=0) as file:
            head, newline, _ = file.read(HEADER_AT_MOST).partition(b"\n")
    except FileNotFoundError:
        return None
    if not newline:
        return None
    try:
        header = msgspec.convert(json.loads(head), HardwareHeader)
    except (ValueError, msgspec.ValidationError) as error:
        raise DataError(f"{path}: not samples of a job's hardware", why=str(error)) from error
    shape = (len(header.sources), len(header.columns))
    dtype: Any = np.dtype([("unix_s", "<f8"), ("step", "<u4"), ("values", "<f4", shape)])
    body = records_at_end(path, len(head) + 1, dtype.itemsize, last if header.sources else 0)
    rows = np.frombuffer(body, dtype=dtype)
    return HardwareSamples(
        header=header,
        unix_s=rows["unix_s"].astype(float),
        step=rows["step"].astype(float),
        columns={name: rows["values"][:, :, at] for at, name in enumerate(header.columns)},
    )

"""Logs of nccl-tests and rccl-tests, with whatever a shell, ``srun -l`` or Markdown put around them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.predict.collectives.choose import known_op
from stepscope.predict.collectives.fabrics import read_fabric
from stepscope.predict.collectives.measured_rows import (
    PRINTED_TYPES,
    Given,
    MeasuredRow,
    MeasuredTable,
    SkipRowError,
    gpu_key,
)

_ROW = re.compile(r"^(?:\d+:)?[ \t]*(\d+)[ \t]+(\d+)[ \t]+([a-z]\w*)[ \t]+(\S.*)$", re.MULTILINE)
_DEVICE = re.compile(
    r"Rank[ \t]+(\d+).*?\bon[ \t]+(\S+)[ \t]+device[ \t]+\d+[ \t]+\[[^\]]*\][ \t]+(\S.*?)[ \t]*$",
    re.MULTILINE,
)
_PERF = re.compile(r"\b([a-z_]+)_perf\b")
_OPS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "alltoall",
    "sendrecv",
    "gather",
    "scatter",
    "reduce",
)
"""As the programs are called, names that contain others first."""
_NUMBERS = 8
"""time, algbw, busbw and errors, out of place and in place: the end of every row, whatever stands before."""


def read_log(file: Path, text: str, given: Given) -> MeasuredTable:
    """Out-of-place times of a log. Raises DataError when no line of it is a row."""
    found = _ROW.findall(text)
    if not found:
        raise DataError(f"{file} is no log of nccl-tests", why="no line begins with size, count and type")
    try:
        template = _template(file, text, given)
    except SkipRowError as reason:
        return MeasuredTable(path=str(file), rows=(), skipped=(f"{reason} ({len(found)})",))
    rows = []
    for size, _, dtype, rest in found:
        words = rest.split()
        if len(words) >= _NUMBERS and int(size) > 0:
            rows.append(
                replace(
                    template,
                    size_bytes=int(size),
                    time_ns=float(words[-_NUMBERS]) * 1e3,
                    dtype=PRINTED_TYPES.get(dtype, dtype),
                )
            )
    return MeasuredTable(path=str(file), rows=tuple(rows), skipped=())


def _template(file: Path, text: str, given: Given) -> MeasuredRow:
    """What all rows of the log share, from its list of devices."""
    devices = {int(rank): (host, name) for rank, host, name in _DEVICE.findall(text)}
    op = _op(file, text)
    n = given.n_gpus or (max(devices) + 1 if devices else None)
    names = {given.gpu} if given.gpu else {name for _, name in devices.values()}
    if op is None:
        raise SkipRowError("the log does not say which collective it is of")
    if n is None:
        raise SkipRowError("the log does not list its GPUs")
    if len(names) != 1:
        raise SkipRowError("GPUs of several kinds" if names else "the log does not name its GPU")
    key = gpu_key(names.pop() or "")
    hosts = len({host for host, _ in devices.values()})
    per_node = given.gpus_per_node or (-(-n // hosts) if hosts and len(devices) == n else None)
    return MeasuredRow(
        source=file.stem,
        op=known_op(op),
        size_bytes=0,
        time_ns=0.0,
        n_gpus=n,
        gpu=key,
        gpus_per_node=per_node,
        fabric=read_fabric(given.inter_node or "", gpu_key=key),
        dtype="float32",
    )


def _op(file: Path, text: str) -> str | None:
    run = [name for name in _PERF.findall(text) if name in _OPS]
    if run:
        return str(run[-1])
    stem = file.stem.replace("_", "").lower()
    return next((op for op in _OPS if op.replace("_", "") in stem), None)

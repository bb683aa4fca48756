"""Measured tables of collectives (published csv, nccl-tests logs, profiled collectives) as rows to compare with."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from stepscope.core.errors import DataError, UsageError
from stepscope.predict.collectives.choose import itemsize, known_op
from stepscope.predict.collectives.costs import collective
from stepscope.predict.collectives.machine import Caller, Fabric, read_fabric
from stepscope.predict.step.model import whole
from stepscope.predict.step.run_rows import SkipRowError, above_zero, gpu_key
from stepscope.store.importer import require_there
from stepscope.store.nccl_tests_facts import Facts, facts_of
from stepscope.store.nccl_tests_log import LoggedRun, read_tables

PRINTED_TYPES = {"float": "float32", "double": "float64", "half": "float16"}
"""What nccl-tests calls the types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRow:
    """One measured size. time_ns: of one call, out of place where both were measured. algorithm: the only one allowed.

    caller: how it was measured, see :func:`choose.predict_collective`.
    """

    source: str
    op: str
    size_bytes: int
    time_ns: float
    n_gpus: int
    gpu: str
    gpus_per_node: int | None
    fabric: Fabric | None
    dtype: str
    algorithm: str | None = None
    caller: Caller = "nccl-tests"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTable:
    """skipped: what could not be used, and why, each reason once with its count."""

    path: str
    rows: tuple[MeasuredRow, ...]
    skipped: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the reader's caller knows and a file may not say."""

    gpu: str | None = None
    n_gpus: int | None = None
    gpus_per_node: int | None = None
    inter_node: str | None = None


_TORCH = ("torch", "ml-engineering", "all_reduce_bench")
NO_NUMBER = "a value that is not a number"
_RING_ONLY = re.compile(r"NCCL_ALGO=Ring|NVLS_ENABLE=0|algo=Ring", re.IGNORECASE)


def read_measured_table(path: str | Path, given: Given | None = None) -> MeasuredTable:
    """The rows of one file: published csv, ``*_perf`` log, vidur's or TraceLens's collective csv.

    given: what the file does not say (a log's GPU, where its head is lost). Raises DataError when the file cannot be read
    or is none of these.
    """
    file, given = Path(path), given or Given()
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}", why=str(error)) from error
    if file.suffix != ".csv":
        return _read_log(file, given)
    rows = list(csv.DictReader(text.splitlines()))
    columns = set(rows[0]) if rows else set()
    if {"collective", "size_bytes"} <= columns:
        return _collect(file, rows, lambda row: _published(row, given))
    if {"num_workers", "size", "time_stats.all_reduce.median"} <= columns:
        return _collect(file, rows, lambda row: _vidur(row, file, given))
    if {"Collective name", "Group size", "comm_latency_median"} <= columns:
        return _collect(file, rows, lambda row: _tracelens(row, file, given))
    raise DataError(
        f"{file} is not a table of collectives",
        why="expected columns collective, size_bytes, n_gpus and time_us, or busbw_gbps",
    )


def read_measured_tables(path: Path, given: Given) -> tuple[list[MeasuredRow], list[str]]:
    """Rows of a table, or of all tables of collectives in a folder, and why others were not read. Raises DataError."""
    require_there(path)
    files = [path] if path.is_file() else sorted(path.glob("collectives_*.csv"))
    if not files:
        files = sorted(file for file in path.iterdir() if file.suffix in (".csv", ".log", ".txt") and file.is_file())
    rows: list[MeasuredRow] = []
    skipped: list[str] = []
    for file in files:
        try:
            table = read_measured_table(file, given)
        except DataError as error:
            if files == [path]:
                raise
            skipped.append(error.what)
            continue
        rows += table.rows
        skipped += [f"{file.name}: {text}" for text in table.skipped]
    return rows, skipped


def _collect(
    file: Path, rows: Iterable[Mapping[str, str]], read: Callable[[Mapping[str, str]], MeasuredRow]
) -> MeasuredTable:
    found: list[MeasuredRow] = []
    skipped: dict[str, int] = {}
    for row in rows:
        try:
            found.append(read(row))
        except (SkipRowError, UsageError) as reason:
            text = reason.what if isinstance(reason, UsageError) else str(reason)
            skipped[text] = skipped.get(text, 0) + 1
        except (ValueError, OverflowError):
            skipped[NO_NUMBER] = skipped.get(NO_NUMBER, 0) + 1
    return MeasuredTable(
        path=str(file), rows=tuple(found), skipped=tuple(f"{text} ({n})" for text, n in skipped.items())
    )


def _published(row: Mapping[str, str], given: Given) -> MeasuredRow:
    op = known_op(row.get("collective") or "")
    name = given.gpu or row.get("accelerator")
    if not name:
        raise SkipRowError("GPU not stated")
    gpu = gpu_key(name)
    size = whole(row, "size_bytes")
    if size is None:
        raise SkipRowError("size not stated")
    per_node = whole(row, "gpus_per_node") or given.gpus_per_node
    nodes = whole(row, "nodes")
    n = whole(row, "n_gpus") or given.n_gpus
    if n is None and nodes and per_node:
        n = nodes * per_node
    if n is None:
        raise SkipRowError("number of GPUs not stated")
    if per_node is None and nodes:
        per_node = -(-n // nodes)
    words = f"{row.get('library') or ''} {row.get('notes') or ''}"
    network = row.get("inter_node") or given.inter_node or ""
    dtype = row.get("dtype") or "float32"
    dtype = PRINTED_TYPES.get(dtype, dtype)
    itemsize(dtype)
    return MeasuredRow(
        source=row.get("source") or "?",
        op=op,
        size_bytes=size,
        time_ns=_time_ns(row, op, size, n),
        n_gpus=n,
        gpu=gpu,
        gpus_per_node=per_node,
        fabric=read_fabric(network, gpu_key=gpu),
        dtype=dtype,
        algorithm="ring" if _RING_ONLY.search(words) else None,
        caller="torch" if any(word in words.lower() for word in _TORCH) else "nccl-tests",
    )


def _time_ns(row: Mapping[str, str], op: str, size: int, n: int) -> float:
    """Measured time; where only a rate is printed, the time it stands for."""
    for column in ("time_us", "time_inplace_us"):
        time = above_zero(row, column)
        if time:
            return time * 1e3
    factor = collective(op).bus_factor(n)
    for column, scale in (("busbw_gbps", factor), ("algbw_gbps", 1.0)):
        rate = above_zero(row, column)
        if rate:
            return size * scale / rate
    raise SkipRowError("neither a time nor a bandwidth")


def _vidur(row: Mapping[str, str], file: Path, given: Given) -> MeasuredRow:
    """Of microsoft/vidur: milliseconds in steps of 1 us; pairs of PCIe cards with a bridge where the file says so."""
    gpu = given.gpu or ("h100-pcie" if "h100" in file.stem and "pairwise" in file.stem else None)
    if gpu is None:
        raise SkipRowError("GPU not stated")
    n = int(row["num_workers"])
    return MeasuredRow(
        source=file.stem,
        op=known_op(row["collective"]),
        size_bytes=int(row["size"]),
        time_ns=float(row["time_stats.all_reduce.median"]) * 1e6,
        n_gpus=n,
        gpu=gpu_key(gpu),
        gpus_per_node=int(row["devices_per_node"]),
        fabric=None,
        dtype="float16",
    )


_TRACE_OPS = {
    "_allgather_base": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "allreduce": "all_reduce",
}


def _tracelens(row: Mapping[str, str], file: Path, given: Given) -> MeasuredRow:
    """Of TraceLens: collectives of a real step, which share the GPU with its computation."""
    gpu = given.gpu or ("mi300x" if "mi300" in file.stem else None)
    op = _TRACE_OPS.get(row["Collective name"])
    if gpu is None or op is None:
        raise SkipRowError("GPU not stated" if gpu is None else f"no op for {row['Collective name']!r}")
    return MeasuredRow(
        source=f"{file.stem} (during a step)",
        op=op,
        size_bytes=round(float(row["Full msg size (MB)"]) * 2**20),
        time_ns=float(row["comm_latency_median"]) * 1e3,
        n_gpus=int(row["Group size"]),
        gpu=gpu_key(gpu),
        gpus_per_node=given.gpus_per_node,
        fabric=None,
        dtype="bfloat16" if row["dtype"] == "BFloat16" else "float32",
    )


def _read_log(file: Path, given: Given) -> MeasuredTable:
    """Out-of-place times of a log. Raises DataError when no line of it is a row."""
    runs = read_tables(file, headless=True).tables
    if not runs:
        raise DataError(f"{file} is not a log of nccl-tests", why="no line begins with size, count and type")
    rows: list[MeasuredRow] = []
    skipped: list[str] = []
    for run in runs:
        try:
            rows += _logged(file, run, given)
        except (SkipRowError, UsageError) as reason:
            skipped.append(f"{reason.what if isinstance(reason, UsageError) else reason} ({len(run.rows)})")
    return MeasuredTable(path=str(file), rows=tuple(rows), skipped=tuple(skipped))


def _logged(file: Path, run: LoggedRun, given: Given) -> Iterator[MeasuredRow]:
    facts = facts_of(run, file.name, given.n_gpus)
    key = _gpu(run, given)
    fabric = read_fabric(given.inter_node or "", gpu_key=key)
    for row in run.rows:
        if row.out_of_place.time_us is None or row.size_bytes == 0:
            continue
        yield MeasuredRow(
            source=file.stem,
            op=known_op(facts.op),
            size_bytes=row.size_bytes,
            time_ns=float(row.out_of_place.time_us) * 1e3,
            n_gpus=facts.world_size,
            gpu=key,
            gpus_per_node=given.gpus_per_node or _per_node(facts),
            fabric=fabric,
            dtype=PRINTED_TYPES.get(row.dtype, row.dtype),
        )


def _gpu(run: LoggedRun, given: Given) -> str:
    names = {given.gpu} if given.gpu else {device.name for device in run.devices.values()}
    if len(names) != 1:
        raise SkipRowError("GPUs of several kinds" if names else "the log does not name its GPU")
    return gpu_key(names.pop() or "")


def _per_node(facts: Facts) -> int | None:
    return None if facts.hosts is None else -(-facts.world_size // facts.hosts)

"""Logs of nccl-tests and rccl-tests as measured rows, with the facts that a caller adds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepscope.core.errors import DataError, UsageError
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
from stepscope.records.imported import Stated
from stepscope.store.nccl_tests_facts import Facts, facts_of
from stepscope.store.nccl_tests_log import LoggedRun, read_tables


def read_log(file: Path, given: Given) -> MeasuredTable:
    """Out-of-place times of a log. Raises DataError when no line of it is a row."""
    runs = read_tables(file, headless=True).tables
    if not runs:
        raise DataError(f"{file} is no log of nccl-tests", why="no line begins with size, count and type")
    rows: list[MeasuredRow] = []
    skipped: list[str] = []
    for run in runs:
        try:
            rows += _rows(file, run, given)
        except (SkipRowError, UsageError) as reason:
            skipped.append(f"{reason.what if isinstance(reason, UsageError) else reason} ({len(run.rows)})")
    return MeasuredTable(path=str(file), rows=tuple(rows), skipped=tuple(skipped))


def _rows(file: Path, run: LoggedRun, given: Given) -> Iterator[MeasuredRow]:
    stated = Stated(world_size={} if given.n_gpus is None else {file.name: given.n_gpus})
    facts = facts_of(run, file.name, stated)
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

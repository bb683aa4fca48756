"""A comm run for other programs: flat CSV, and JSON with the keys of the benchmark suite's documented output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from stepscope.core.places import utc_now
from stepscope.records import codec
from stepscope.records.comm import CommRow
from stepscope.results.labels import comm_failure_label, sweeps
from stepscope.store.writer import records_csv

_ENTRY = (
    "size_bytes", "numel", "iterations", "warmup", "stop_reason", "time_ns_median", "time_ns_low", "time_ns_high",
    "time_ns_mean", "time_ns_min", "time_ns_p90", "time_ns_p99", "time_ns_max", "rank_spread", "slowest_rank",
    "algbw_bytes_per_s", "busbw_bytes_per_s", "link_peak_bytes_per_s", "link_fraction", "correct",
)  # fmt: skip

_SWEEP = (
    "op", "dtype", "reduce_op", "in_place", "mode", "in_flight", "pattern", "pacing", "root", "world_size", "hosts",
    "device", "backend", "env", "network",
)  # fmt: skip


def comm_suite_document(
    rows: Sequence[CommRow], run: str, *, timestamp: str | None = None, device: str | None = None
) -> dict[str, Any]:
    """Return the JSON of ``comm --format document-001``: name, world_size, timestamp, config, results.communication.<op>.

    Operations are spelled as there (``allreduce``); each holds its sweeps, and a sweep its sizes. Keys that hold a
    quantity name its base unit: bytes, ns, bytes/s. What differs between sweeps is null at the top and said in each:
    ``world_size`` is the largest. ``training`` and ``memory`` are empty: this run measured neither.

    run: name or path of the run. timestamp: UTC of the measurement; None: now. device: its name; None: ``cpu``, ``cuda``.
    """
    communication: dict[str, list[dict[str, Any]]] = {}
    for sweep in sweeps(row for row in rows if row.kind == "collective").values():
        communication.setdefault(sweep[0].op.replace("_", ""), []).append(_sweep_entry(sweep))
    results: dict[str, Any] = {"communication": dict(communication), "training": {}, "memory": {}}
    for kind in ("pairs", "overlap"):
        if of_kind := [row for row in rows if row.kind == kind]:
            results["communication"][kind] = [
                _pair_entry(row) if kind == "pairs" else _overlap_entry(row) for row in of_kind
            ]
    if matmul := [row for row in rows if row.kind == "matmul"]:
        results["matmul"] = [_matmul_entry(row) for row in matmul]
    devices = {row.device for row in rows}
    return {
        "name": PurePath(run).name,
        "world_size": max((row.world_size for row in rows), default=None),
        "timestamp": timestamp or utc_now(),
        "config": {
            "warmup_iters": _common_value(row.warmup for row in rows if row.warmup is not None),
            "benchmark_iters": _common_value(row.iterations for row in rows if row.iterations is not None),
            "device": device or (devices.pop() if len(devices) == 1 else None),
            "backend": _common_value(row.backend for row in rows),
            "scheduler_policy": _common_value(row.scheduler_policy for row in rows if row.scheduler_policy is not None),
        },
        "results": results,
    }


def rows_csv(rows: Sequence[CommRow]) -> str:
    """Write rows as CSV in base units: unknown is an empty field, settings and lists are JSON text."""
    return records_csv(rows, CommRow)


def _sweep_entry(sweep: Sequence[CommRow]) -> dict[str, Any]:
    return {**_row_fields(sweep[0], _SWEEP), "sizes": [_with_status(row, _row_fields(row, _ENTRY)) for row in sweep]}


def _pair_entry(row: CommRow) -> dict[str, Any]:
    return _with_status(row, _row_fields(row, ("world_size", "peer", "bidirectional", "dtype", *_ENTRY)))


def _overlap_entry(row: CommRow) -> dict[str, Any]:
    return _with_status(row, _row_fields(row, (*_SWEEP, *_ENTRY, "slowdown", "beside_slowdown")))


def _matmul_entry(row: CommRow) -> dict[str, Any]:
    names = ("dtype", "world_size", "size_bytes", "numel", "iterations", "time_ns_median", "flops_per_s")
    return _with_status(row, _row_fields(row, names))


def _row_fields(row: CommRow, names: Iterable[str]) -> dict[str, Any]:
    plain: Mapping[str, Any] = codec.plain(row)
    return {name: plain[name] for name in names}


def _with_status(row: CommRow, entry: dict[str, Any]) -> dict[str, Any]:
    """Return ``entry`` with what it lacks figures for: the size that was asked, and why."""
    if row.status == "ok":
        return entry
    return {**entry, "asked_bytes": row.asked_bytes, "status": row.status, "error": comm_failure_label(row)}


def _common_value(values: Iterable[Any]) -> Any:
    """Return the one value that all have; None where they differ or there is none."""
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None

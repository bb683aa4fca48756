"""Rows of comm runs that follow a known alpha and beta, for tests of calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from stepscope.collectives import REGISTRY
from stepscope.predict.calibration import algorithm_of
from stepscope.records.calibration import CalibratedMachine
from stepscope.records.comm import CommRow

SIZES = tuple(1024 * 4**i for i in range(9))
"""1 KiB to 64 MiB."""

MACHINE = CalibratedMachine(
    hosts=("node1",), cpu_model="A CPU", usable_cores=8, gpus=(), torch_version="2.13.0", backend_version=None
)

_UNKNOWN: dict[str, Any] = {
    field.name: None
    for field in dataclasses.fields(CommRow)
    if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
}


def row(**changes: Any) -> CommRow:
    """One measured size of an all_reduce on 2 gloo ranks; ``changes`` replace fields, the rest is unknown."""
    fields: dict[str, Any] = {
        "cell_id": "all_reduce-w2-0123456789", "status": "ok", "kind": "collective", "op": "all_reduce",
        "dtype": "float32", "reduce_op": "sum", "in_place": False, "mode": "blocking", "in_flight": 1,
        "pacing": "barrier", "root": 0, "world_size": 2, "hosts": 1, "device": "cpu", "backend": "gloo", "env": {},
        "size_bytes": 1024,
    }  # fmt: skip
    return CommRow(**(_UNKNOWN | fields | changes))


def sweep(
    op: str = "all_reduce",
    *,
    alpha_ns: float = 50_000,
    beta_bytes_per_s: float = 1e9,
    world_size: int = 2,
    sizes: Sequence[int] = SIZES,
    bend: Callable[[int], float] = lambda size: 1.0,  # noqa: ARG005 - a straight line
    **changes: Any,
) -> list[CommRow]:
    """Rows of ``op`` that cost exactly its steps x alpha + wire bytes / beta, times ``bend`` of the size."""
    backend = changes.get("backend", "gloo")
    collective = REGISTRY.load(op)
    cost = collective.cost(algorithm_of(collective, backend=backend, pattern=changes.get("pattern")))
    rows = []
    for size in sizes if collective.has_payload else (0,):
        time = cost.steps(world_size) * alpha_ns + cost.wire_factor(world_size) * size / beta_bytes_per_s * 1e9
        time *= bend(size)
        fields: dict[str, Any] = {
            "op": op, "size_bytes": size, "world_size": world_size, "cell_id": f"{op}-w{world_size}",
            "time_ns_median": time, "time_ns_low": 0.99 * time, "time_ns_high": 1.01 * time,
        }  # fmt: skip
        rows.append(row(**(fields | changes)))
    return rows

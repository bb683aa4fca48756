"""Rows of comm runs made by hand: every figure in them is chosen, so that what must come out is known.

collective(1024, 50.0)                       one size: bytes, microseconds
sweep("all_reduce", world_size=4, alpha_us=20, rate=10e9)
pairs(8, slow_egress={3: 5.0})
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

from stepscope.collectives import REGISTRY
from stepscope.records.calibration import CalibratedMachine, Calibration, CollectiveFit, Curve, Knot, Line, SizeError
from stepscope.records.comm import CommRow

KIB, MIB = 2**10, 2**20
SIZES = tuple(KIB * 4**n for n in range(9))  # 1 KiB to 64 MiB
TIMES = ("median", "low", "high", "mean", "min", "p90", "p99", "max")


def row(**changes: Any) -> CommRow:
    """A row without figures: all_reduce of fp32 on 2 gloo ranks; ``changes`` replace fields."""
    fields: dict[str, Any] = {
        "cell_id": "cell", "status": "ok", "error": None, "kind": "collective", "op": "all_reduce", "dtype": "fp32",
        "reduce_op": "sum", "in_place": False, "mode": "blocking", "in_flight": 1, "pattern": None,
        "pacing": "barrier", "root": 0, "world_size": 2, "hosts": 1, "device": "cpu", "backend": "gloo", "env": {},
        "network": None, "size_bytes": None, "asked_bytes": None, "numel": None, "iterations": None, "warmup": None,
        "stop_reason": None, "rank_spread": None, "slowest_rank": None, "algbw_bytes_per_s": None,
        "busbw_bytes_per_s": None, "link_peak_bytes_per_s": None, "link_fraction": None, "correct": None,
        **{f"time_ns_{name}": None for name in TIMES},
    }  # fmt: skip
    return CommRow(**(fields | changes))


def collective(size_bytes: int, us: float, **changes: Any) -> CommRow:
    """One measured size whose median is ``us`` microseconds, known to 1%; rates follow from it."""
    ns = us * 1e3
    shape = row(**changes)
    algbw = size_bytes * shape.in_flight / ns * 1e9
    factor = REGISTRY.load(shape.op).bus_factor(2 if shape.peer else shape.world_size)
    peak = shape.link_peak_bytes_per_s
    fields: dict[str, Any] = {
        "size_bytes": size_bytes, "asked_bytes": size_bytes, "numel": size_bytes // 4, "iterations": 40, "warmup": 5,
        "stop_reason": "interval", "time_ns_median": ns, "time_ns_low": 0.99 * ns, "time_ns_high": 1.01 * ns,
        "time_ns_mean": 1.02 * ns, "time_ns_min": 0.95 * ns, "time_ns_p90": 1.08 * ns, "time_ns_p99": 1.2 * ns,
        "time_ns_max": 1.3 * ns, "rank_spread": 0.03, "slowest_rank": 1, "correct": True,
        "algbw_bytes_per_s": algbw, "busbw_bytes_per_s": algbw * factor,
        "link_fraction": None if peak is None else algbw * factor / peak,
    }  # fmt: skip
    return row(**(fields | changes))


def sweep(
    op: str = "all_reduce", *, sizes: Sequence[int] = SIZES, alpha_us: float = 50.0, rate: float = 2e9, **changes: Any
) -> list[CommRow]:
    """A sweep over sizes whose time is ``alpha_us`` + size / ``rate`` (bytes/s)."""
    reduces = REGISTRY.load(op).reduces
    shape = {"op": op, "cell_id": f"{op}-{changes}", "reduce_op": "sum" if reduces else None} | changes
    return [collective(size, alpha_us + size / rate * 1e6, **shape) for size in sizes]


def pairs(
    ranks: int,
    *,
    us: float = 17_000.0,
    size_bytes: int = 2 * MIB,
    slow_egress: Mapping[int, float] | None = None,
    slow_ingress: Mapping[int, float] | None = None,
    slow_links: Mapping[tuple[int, int], float] | None = None,
    bidirectional: bool = False,
    noise: random.Random | None = None,
    sigma: float = 0.03,
    **changes: Any,
) -> list[CommRow]:
    """Every pair once: ``us`` times what is slow about it, times log-normal ``noise`` with ``sigma``."""
    out, into, links = slow_egress or {}, slow_ingress or {}, slow_links or {}
    rows = []
    for sender in range(ranks):
        for receiver in range(ranks):
            if sender == receiver or (bidirectional and sender > receiver):
                continue
            ways = [(sender, receiver), (receiver, sender)] if bidirectional else [(sender, receiver)]
            factor = max(max(out.get(a, 1.0), into.get(b, 1.0), links.get((a, b), 1.0)) for a, b in ways)
            scatter = 1.0 if noise is None else noise.lognormvariate(0.0, sigma)
            fields = {
                "kind": "pairs", "op": "send_recv", "reduce_op": None, "world_size": ranks, "cell_id": "pairs",
                "peer": (sender, receiver), "bidirectional": bidirectional,
            }  # fmt: skip
            rows.append(collective(size_bytes, us * factor * scatter, **(fields | changes)))
    return rows


def fit(rows: Sequence[CommRow], *, alpha_us: float, rate: float, wiggle: float = 0.0) -> CollectiveFit:
    """A fit of a sweep: the line as given, the curve through every second point, off by ``wiggle`` in turns."""
    first = rows[0]
    knots, errors = [], []
    for number, r in enumerate(rows):
        assert r.size_bytes is not None
        assert r.time_ns_median is not None
        off = 1 + wiggle * (-1) ** number
        line = alpha_us * 1e3 + r.size_bytes / rate * 1e9
        if number % 2 == 0:
            knots.append(Knot(size_bytes=r.size_bytes, time_ns=r.time_ns_median * off))
        errors.append(
            SizeError(
                size_bytes=r.size_bytes, measured_ns=r.time_ns_median, line_ns=line, curve_ns=r.time_ns_median * off
            )
        )
    line_errors = [abs(e.line_ns / e.measured_ns - 1) for e in errors]
    return CollectiveFit(
        op=first.op, dtype=first.dtype, in_place=first.in_place, pattern=first.pattern, world_size=first.world_size,
        placement=str(first.world_size), backend=first.backend, device=first.device, network=first.network,
        algorithm="gloo",
        line=Line(
            alpha_ns=alpha_us * 1e3, alpha_ns_low=None, alpha_ns_high=None, beta_bytes_per_s=rate,
            beta_bytes_per_s_low=None, beta_bytes_per_s_high=None, steps=1, wire_factor=1.0, r_squared=0.999,
            mean_relative_error=sum(line_errors) / len(errors), max_relative_error=max(line_errors),
        ),
        curve=Curve(
            family="loglog", knots=tuple(knots), mean_relative_error=wiggle, max_relative_error=wiggle,
            cross_validated_error=0.12,
        ),
        errors=tuple(errors),
        line_fails=None,
    )  # fmt: skip


def calibration(*fits: CollectiveFit) -> Calibration:
    machine = CalibratedMachine(
        hosts=("node-a",), cpu_model=None, usable_cores=2, gpus=(), torch_version=None, backend_version=None
    )
    return Calibration(run="runs/comm", machine=machine, fits=fits)

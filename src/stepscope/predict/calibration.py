"""From the rows of a comm run to a calibration: one line and one curve per collective, group size and placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from typing import Any

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.collectives import Collective
from stepscope.collectives.table import Cost
from stepscope.core.errors import UsageError
from stepscope.core.units import format_percent, format_size
from stepscope.core.words import counted, grouped
from stepscope.predict.curve_fit import fit_curve
from stepscope.predict.curve_shape import curve_time_ns
from stepscope.predict.line_fit import MIN_SIZES, checked, fit_latency, fit_line, line_fails, line_time_ns, noise_of
from stepscope.records.calibration import (
    CalibratedMachine,
    Calibration,
    CollectiveFit,
    Curve,
    Knot,
    Line,
    MatmulRate,
    SizeError,
)
from stepscope.records.comm import CommRow
from stepscope.records.environment import EnvironmentRecord

LATENCY_ONLY = "latency"
"""Family of the curve of a collective without payload: one knot."""

NOISY_ERROR = 0.3
"""Mean error of the curve, or of one fitted to the other sizes, from which on sizes contradict each other.

22 sweeps on two busy cores had 0.04 to 0.23.
"""

_SEEN_RATE = 0.5  # share of the largest size's time that is bandwidth, below which the rate is a guess


def _fit_key(row: CommRow, machine: CalibratedMachine) -> dict[str, Any]:
    """Return what a fit is for, as fields of CollectiveFit."""
    names = ("op", "dtype", "in_place", "pattern", "world_size", "backend", "device", "network")
    placement = placement_of(row.world_size, row.hosts, machine)
    return {"placement": placement, **{name: getattr(row, name) for name in names}}


def _sweep_name(row: CommRow, placement: str) -> str:
    """Write what a sweep measures, to tell it from others in notes."""
    parts = [
        row.op if row.pattern is None else f"{row.op} {row.pattern}",
        row.dtype,
        "in place" if row.in_place else "",
        counted(row.world_size, "rank"),
        f"on {placement}" if placement != str(row.world_size) else "",
        f"{row.backend}/{row.device}",
        row.network or "",
    ]
    return " ".join(part for part in parts if part)


def _way_key(row: CommRow) -> tuple[Any, ...]:
    """Return how the same collective was called: only one way of it is calibrated.

    The usual one sorts first: blocking, nothing set, a sum, a barrier before each call, root 0.
    """
    reduction = "" if row.reduce_op in (None, "sum") else str(row.reduce_op)
    env = tuple(sorted(row.env.items()))
    return not _is_one_call(row), env, reduction, row.pacing != "barrier", row.root, row.mode, row.in_flight


def _is_one_call(row: CommRow) -> bool:
    """Whether a sample is the time of one call."""
    return row.mode == "blocking" and row.in_flight == 1


def _way_text(row: CommRow) -> str:
    """Write how a collective was called, where that is not the usual way."""
    several, env, reduction, back_to_back, root, mode, in_flight = _way_key(row)
    parts = [
        f"{mode} x{in_flight}" if several else "",
        " ".join(f"{k}={v}" for k, v in env),
        reduction,
        "back to back" if back_to_back else "",
        f"root {root}" if root else "",
    ]
    return ", ".join(part for part in parts if part) or "blocking"


def calibrate(rows: Sequence[CommRow], *, run: str, machine: CalibratedMachine) -> Calibration:
    """The calibration of ``rows`` (results.jsonl of a comm run): a fit per op, dtype, form, world, placement and network.

    Of several ways to call the same collective the usual one is fitted: blocking, no variables set, sum, a barrier
    before each call, root 0; one with too few sizes for a fit gives way to the next. What was not fitted is named in
    ``skipped`` with the reason. Raises UsageError when nothing could be fitted.
    """
    fits: list[CollectiveFit] = []
    skipped: list[str] = []
    collectives = [row for row in rows if row.kind == "collective"]
    for of_key in grouped(collectives, lambda row: tuple(_fit_key(row, machine).values())).values():
        key = _fit_key(of_key[0], machine)
        name = _sweep_name(of_key[0], key["placement"])
        ways = list(grouped(of_key, _way_key).values())
        enough = [way for way in ways if _is_one_call(way[0]) and _size_count(way) >= MIN_SIZES] or ways
        usual = min(enough, key=lambda way: _way_key(way[0]))
        if not _is_one_call(usual[0]):
            skipped += [f"{name}, {_way_text(way[0])}: only blocking calls, one at a time, are fitted" for way in ways]
            continue
        instead = f"{_way_text(usual[0])} is fitted instead"
        skipped += [f"{name}, {_way_text(way[0])}: {instead}" for way in ways if way is not usual]
        try:
            fits.append(_fitted_collective(key, usual))
        except UsageError as error:
            skipped.append(f"{name}: {error.line}")
    matmul = _matmul_rates(rows)
    if not fits and not matmul:
        raise _nothing_to_fit_error(rows, skipped)
    return Calibration(run=run, machine=machine, fits=tuple(fits), matmul=matmul, skipped=tuple(skipped))


def _size_count(rows: Sequence[CommRow]) -> int:
    return len({row.size_bytes for row in rows if row.status == "ok" and row.time_ns_median})


def machine_of(environment: EnvironmentRecord) -> CalibratedMachine:
    """Return the machine that a calibration made under ``environment`` holds for."""
    torch = environment.torch
    return CalibratedMachine(
        hosts=(environment.host,),
        cpu_model=environment.cpu_model,
        usable_cores=environment.usable_cores,
        gpus=tuple(gpu.name for gpu in environment.gpus),
        torch_version=None if torch is None else torch.version,
        backend_version=None if torch is None else torch.nccl_version,
    )


def algorithm_of(collective: Collective, *, backend: str, pattern: str | None) -> str:
    """Key of the cost that a fit uses: gloo's own on gloo (of the pattern, where it has one), else the ideal one."""
    if backend == "gloo":
        for name in (f"gloo_{pattern}", "gloo"):
            if name in collective.costs:
                return name
    return next(iter(collective.costs))


def usual_cost(op: str, backend: str) -> Cost:
    """What ``op`` costs by the backend's own algorithm, or by the ideal one."""
    collective = COLLECTIVES.load(op)
    return collective.cost(algorithm_of(collective, backend=backend, pattern=None))


def _fitted_collective(key: Mapping[str, Any], rows: Sequence[CommRow]) -> CollectiveFit:
    """Fit the rows of one key. Raises UsageError where the rows do not support a fit."""
    first = rows[0]
    if first.world_size < 2:
        raise UsageError("one rank: no data is sent, so there is nothing to fit")
    measured = [row for row in rows if row.status == "ok" and row.time_ns_median]
    if not measured:
        reasons = dict.fromkeys(row.error or row.status for row in rows)
        raise UsageError("no size was measured", why="; ".join(reasons))
    if first.op not in COLLECTIVES.names():
        raise UsageError(f"{first.op} is not a collective of this installation", why="its steps are unknown")
    collective = COLLECTIVES.load(first.op)
    algorithm = algorithm_of(collective, backend=first.backend, pattern=first.pattern)
    cost = collective.cost(algorithm)
    steps, wire_factor = cost.steps(first.world_size), cost.wire_factor(first.world_size)
    way = _way_text(first)
    notes = [] if way == "blocking" else [f"measured with {way}"]
    dropped = [row for row in rows if row.status != "ok"]
    if dropped:
        notes.append(f"{counted(len(dropped), 'size')} without a result left out")
    times = [row.time_ns_median for row in measured if row.time_ns_median is not None]
    if not collective.has_payload:
        line, curve, errors = _line_curve_and_errors(measured, times, steps)
    else:
        sizes = [_row_size_bytes(row) for row in measured]
        noise = [noise_of(row.time_ns_low, row.time_ns_high) for row in measured]
        distinct, middle = checked(sizes, times)
        line = fit_line(sizes, times, steps=steps, wire_factor=wire_factor, noise=noise)
        curve = fit_curve(sizes, times, noise=noise)
        errors = tuple(
            SizeError(
                size_bytes=int(size),
                measured_ns=float(time),
                line_ns=line_time_ns(line, size),
                curve_ns=curve_time_ns(curve, size),
            )
            for size, time in zip(distinct, middle, strict=True)
        )
        notes += [*_noise_notes(curve), *_rate_notes(line, int(distinct[-1]))]
    return CollectiveFit(
        **key,
        algorithm=algorithm,
        line=line,
        curve=curve,
        errors=errors,
        line_fails=line_fails(errors) if collective.has_payload else None,
        notes=tuple(notes),
    )


def _line_curve_and_errors(
    rows: Sequence[CommRow], times: Sequence[float], steps: int
) -> tuple[Line, Curve, tuple[SizeError, ...]]:
    """Return line, curve and errors by size, fitted to times in ns."""
    intervals = [
        (row.time_ns_low / steps, row.time_ns_high / steps)
        for row in rows
        if row.time_ns_low is not None and row.time_ns_high is not None
    ]
    line = fit_latency(times, steps=steps, intervals_ns=intervals)
    time = line_time_ns(line, 0)
    knot = Knot(
        size_bytes=1,
        time_ns=time,
        low_ns=None if line.alpha_ns_low is None else min(time, line.alpha_ns_low * steps),
        high_ns=None if line.alpha_ns_high is None else max(time, line.alpha_ns_high * steps),
    )
    curve = Curve(
        family=LATENCY_ONLY,
        knots=(knot,),
        mean_relative_error=line.mean_relative_error,
        max_relative_error=line.max_relative_error,
        cross_validated_error=None,
    )
    errors = tuple(SizeError(size_bytes=0, measured_ns=t, line_ns=time, curve_ns=time) for t in times)
    return line, curve, errors


def _noise_notes(curve: Curve) -> list[str]:
    """Note that the curve misses its sizes by much."""
    error = max(curve.mean_relative_error, curve.cross_validated_error or 0.0)
    if error <= NOISY_ERROR:
        return []
    return [
        f"too noisy for conclusions: sizes are off the curve by {format_percent(error)} on average; "
        "measure again with a longer --budget on an idle machine"
    ]


def _rate_notes(line: Line, largest: int) -> list[str]:
    """Note that the sizes show no rate, or barely."""
    if line.beta_bytes_per_s is None:
        return [f"no rate seen: up to {format_size(largest)} the time barely grows; measure larger sizes"]
    total = line_time_ns(line, largest)
    if (total - line.steps * line.alpha_ns) / total < _SEEN_RATE:
        return [f"at {format_size(largest)} latency is still most of the time: the rate is uncertain"]
    return []


def _row_size_bytes(row: CommRow) -> int:
    if not row.size_bytes:
        raise UsageError(f"a row of {row.op} has a time and no size")
    return row.size_bytes


def placement_of(world_size: int, hosts: int | None, machine: CalibratedMachine) -> str:
    """Ranks per host: ``4`` (one host), ``2+2``; ``4 on 3 hosts`` where they do not divide evenly."""
    count = hosts if hosts is not None else len(machine.hosts) or 1
    if count <= 1:
        return str(world_size)
    if world_size % count:
        return f"{world_size} on {count} hosts"
    return "+".join([str(world_size // count)] * count)


def _matmul_rates(rows: Iterable[CommRow]) -> tuple[MatmulRate, ...]:
    """Return the best rate, FLOP/s, of each type and size of product."""
    best: dict[tuple[str, int], float] = {}
    for row in rows:
        if row.kind == "matmul" and row.status == "ok" and row.flops_per_s and row.numel:
            key = (row.dtype, isqrt(row.numel))
            best[key] = max(best.get(key, 0.0), row.flops_per_s)
    return tuple(MatmulRate(dtype=dtype, size=size, flops_per_s=rate) for (dtype, size), rate in sorted(best.items()))


def _nothing_to_fit_error(rows: Sequence[CommRow], skipped: Sequence[str]) -> UsageError:
    """Return the error of rows that support no fit, with the reason."""
    kinds: Mapping[str, None] = dict.fromkeys(row.kind for row in rows)
    if "collective" not in kinds:
        kinds_text = ", ".join(kinds) or "no rows at all"
        return UsageError(
            "there is nothing to calibrate",
            why=f"no sweep over sizes of a collective was measured: {kinds_text}",
            fix="stepscope comm --ops all_reduce --sizes 1K:64M:4",
        )
    if all(row.status != "ok" for row in rows if row.kind == "collective"):
        reasons = list(dict.fromkeys(row.error or row.status for row in rows if row.kind == "collective"))
        return UsageError(
            "there is nothing to calibrate: no collective of this run succeeded",
            why="; ".join(reasons[:3]) + (f" (and {len(reasons) - 3} more)" if len(reasons) > 3 else ""),
            fix="repair what the reasons name and run `stepscope comm` again",
        )
    return UsageError(
        "no collective could be fitted",
        why="; ".join(skipped[:3]) + (f" (and {len(skipped) - 3} more)" if len(skipped) > 3 else ""),
        fix="measure at least 4 sizes over a factor of 16: stepscope comm --sizes 1K:64M:4",
    )

"""The time of a collective from a calibration: its curve where it was measured, scaled steps and bytes elsewhere."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.units import format_size
from stepscope.core.words import counted, unknown
from stepscope.predict.collectives.costs import Predicted
from stepscope.predict.curve_shape import curve_interval_ns, curve_time_ns
from stepscope.predict.line_fit import line_time_ns
from stepscope.records.calibration import CalibratedMachine, Calibration, CollectiveFit

_OTHER_WORLD = 0.10
"""80% half-width, of log(time), that another world size adds: gloo at 4 ranks from 2 is met within 5 to 10%."""

_PER_DOUBLING = 0.10  # and of every further doubling of the world

_LEAST_REACH = 0.02  # no prediction of a measured time is better than this


@record
class FitWanted:
    """Which fit is wanted; None: any, the one that suits best."""

    dtype: str | None = None
    pattern: str | None = None
    backend: str | None = None
    network: str | None = None


def time_of(
    calibration: Calibration, op: str, size_bytes: int, world_size: int, *, asked: FitWanted | None = None
) -> Predicted:
    """Time of one blocking call of ``op`` with S = ``size_bytes`` on ``world_size`` ranks, ns, with an 80% interval.

    At a measured world size it is that size's curve; outside the measured sizes the interval reaches to the line's time,
    too. At another one it is the nearest measured curve, with its latency part scaled by the steps and the rest by the wire
    bytes that the collective declares for both (``steps`` and ``wire_factor`` of its cost); then the interval is wider and a
    note says so. A dtype that was not measured is replaced by one that was, with a note; backend, pattern and network that
    are asked for must have been measured. Raises UsageError naming what was.
    """
    wanted = asked or FitWanted()
    if size_bytes < 0 or world_size < 1:
        raise UsageError(
            f"{size_bytes} bytes on {world_size} ranks cannot be predicted",
            fix="give a size of 0 or more and a world of 1 or more",
        )
    fit, notes = _chosen_fit(calibration, op, world_size, wanted)
    if world_size == 1:
        return Predicted(
            time_ns=0.0,
            low_ns=0.0,
            high_ns=0.0,
            algorithm=fit.algorithm,
            why="one rank: no data is sent",
            notes=("the cost of the call itself on one rank is not counted",),
        )
    spec = COLLECTIVES.load(op)
    if spec.has_payload:
        notes += _range_notes(fit, size_bytes)
    size = max(size_bytes, 1) if spec.has_payload else 1
    if fit.world_size == world_size:
        predicted = _prediction_from_curve(fit, size, tuple(notes))
    else:
        predicted = _prediction_scaled(fit, size, world_size, tuple(notes))
    if not (spec.has_payload and size_bytes and predicted.time_ns):
        return predicted
    return replace(predicted, busbw_bytes_per_s=size_bytes / (predicted.time_ns / 1e9) * spec.bus_factor(world_size))


def world_spread(ranks: int, measured: int) -> float:
    """80% half-width of log(time) that going from ``measured`` ranks to ``ranks`` adds; 0 for the same."""
    if ranks == measured:
        return 0.0
    return _OTHER_WORLD + _PER_DOUBLING * max(0.0, abs(math.log2(ranks / measured)) - 1)


def machine_warnings(calibration: Calibration, machine: CalibratedMachine) -> tuple[str, ...]:
    """Say in sentences what differs between the calibrated machine and ``machine``; empty where nothing is known to."""
    ours, theirs = machine, calibration.machine
    return tuple(
        f"calibrated on {_counted_names(before)}, used on {_counted_names(now)}: {consequence}"
        for before, now, consequence in (
            (theirs.hosts, ours.hosts, "measure on this machine: times may differ"),
            (theirs.gpus, ours.gpus, "GPUs and their links differ"),
            (theirs.cpu_model, ours.cpu_model, "on gloo the CPU sets latency and rate"),
            (_cores_text(theirs.usable_cores), _cores_text(ours.usable_cores), "ranks share cores differently"),
            (
                _release_text("torch", theirs.torch_version),
                _release_text("torch", ours.torch_version),
                "algorithms may differ",
            ),
            (
                _release_text("backend", theirs.backend_version),
                _release_text("backend", ours.backend_version),
                "algorithms may differ",
            ),
        )
        if before is not None and now is not None and before != now
    )


def _prediction_from_curve(fit: CollectiveFit, size: float, notes: tuple[str, ...]) -> Predicted:
    """Return the time of a call, ns, by the curve measured on as many ranks."""
    middle, (low, high) = _ns_and_interval(fit, size)
    return Predicted(
        time_ns=middle,
        low_ns=low,
        high_ns=high,
        algorithm=fit.algorithm,
        why=f"curve measured on {counted(fit.world_size, 'rank')} ({fit.curve.family})",
        notes=notes,
    )


def _prediction_scaled(fit: CollectiveFit, size: float, world_size: int, notes: tuple[str, ...]) -> Predicted:
    """Return the time of a call, ns, by a curve of other ranks: latency with the steps, transfer with the bytes on the
    wire."""
    cost = COLLECTIVES.load(fit.op).cost(fit.algorithm)
    steps, wire_factor = cost.steps(world_size), cost.wire_factor(world_size)
    middle, (low, high) = _ns_and_interval(fit, size)
    # No line's latency can be more than the whole time of a small message.
    latency = min(fit.line.steps * fit.line.alpha_ns, curve_time_ns(fit.curve, 1))
    bandwidth = max(0.0, middle - latency) if fit.line.wire_factor > 0 else 0.0
    time = latency * steps / fit.line.steps
    if bandwidth:
        time += bandwidth * wire_factor / fit.line.wire_factor
    spread = math.hypot(world_spread(world_size, fit.world_size), math.log(high / low) / 2)
    return Predicted(
        time_ns=time,
        low_ns=time * math.exp(-spread),
        high_ns=time * math.exp(spread),
        algorithm=fit.algorithm,
        why=f"scaled from {counted(fit.world_size, 'rank')}, the nearest measured world",
        notes=(
            f"{counted(world_size, 'rank')} were not measured: {fit.algorithm} takes {counted(steps, 'step')} and "
            f"{wire_factor:.3g} S on the wire there, {fit.line.steps} and {fit.line.wire_factor:.3g} S "
            f"on {counted(fit.world_size, 'rank')}",
            *notes,
        ),
    )


def _ns_and_interval(fit: CollectiveFit, size: float) -> tuple[float, tuple[float, float]]:
    """Return the time, ns, and its interval; beyond the measured sizes by the line."""
    middle = curve_time_ns(fit.curve, size)
    low, high = curve_interval_ns(fit.curve, size) or (middle, middle)
    if fit.line.beta_bytes_per_s is not None and not _measured_range(fit)[0] <= size <= _measured_range(fit)[1]:
        # The fit's two models differ there, and nothing was measured that decides between them.
        low, high = min(low, line := line_time_ns(fit.line, size)), max(high, line)
    return middle, (min(low, middle / (1 + _LEAST_REACH)), max(high, middle * (1 + _LEAST_REACH)))


def _chosen_fit(
    calibration: Calibration, op: str, world_size: int, asked: FitWanted
) -> tuple[CollectiveFit, list[str]]:
    """Return the fit that fits best what is asked, with notes. Raises UsageError where none does, or several."""
    fits = [fit for fit in calibration.fits if fit.op == op]
    if not fits:
        if op not in COLLECTIVES.names():
            raise UsageError(unknown("collective", op, COLLECTIVES.names()))
        ops_text = ", ".join(dict.fromkeys(fit.op for fit in calibration.fits)) or "no collective"
        raise UsageError(
            f"{op} is not in the calibration of {calibration.run}",
            why=f"it holds {ops_text}",
            fix=f"stepscope comm --ops {op}, then stepscope calibrate again",
        )
    for name in ("backend", "network", "pattern"):
        fits = _fits_with(fits, name, getattr(asked, name))
    notes: list[str] = []
    if asked.dtype is not None:
        there = asked.dtype if any(fit.dtype == asked.dtype for fit in fits) else fits[0].dtype
        if there != asked.dtype:
            notes.append(f"dtype {asked.dtype} was not measured: taken from {there}, the same bytes")
        fits = [fit for fit in fits if fit.dtype == there]
    chosen = min(
        fits, key=lambda fit: (abs(math.log(fit.world_size / world_size)), fit.in_place, fit.network is not None)
    )
    notes += chosen.notes
    others = {_placing_text(fit) for fit in fits if fit.world_size == chosen.world_size} - {_placing_text(chosen)}
    if others:
        notes.append(f"used: {_placing_text(chosen)}; also measured: {', '.join(sorted(others))}")
    return chosen, notes


def _fits_with(fits: Sequence[CollectiveFit], name: str, wanted: str | None) -> list[CollectiveFit]:
    """Return the fits with the wanted value. Raises UsageError where there is none."""
    if wanted is None:
        return list(fits)
    matching = [fit for fit in fits if getattr(fit, name) == wanted]
    if not matching:
        measured = dict.fromkeys(str(getattr(fit, name) or "none") for fit in fits)
        raise UsageError(
            f"{fits[0].op} was not calibrated with {name} {wanted}", why=f"measured: {', '.join(measured)}"
        )
    return matching


def _placing_text(fit: CollectiveFit) -> str:
    return " ".join(part for part in (f"{fit.backend}/{fit.device}", fit.placement, fit.network) if part)


def _range_notes(fit: CollectiveFit, size_bytes: int) -> list[str]:
    low, high = _measured_range(fit)
    if low <= size_bytes <= high:
        return []
    return [f"{format_size(size_bytes)} is outside the measured {format_size(low)} to {format_size(high)}"]


def _measured_range(fit: CollectiveFit) -> tuple[int, int]:
    """The smallest and the largest S that were measured, bytes."""
    sizes = [error.size_bytes for error in fit.errors]
    return min(sizes), max(sizes)


def _counted_names(value: Iterable[str] | str) -> str:
    if isinstance(value, str):
        return value
    return ", ".join(name if count == 1 else f"{count}x {name}" for name, count in Counter(value).items()) or "no GPU"


def _cores_text(count: int | None) -> str | None:
    return None if count is None else f"{counted(count, 'core')}"


def _release_text(name: str, version: str | None) -> str | None:
    return None if version is None else f"{name} {version}"

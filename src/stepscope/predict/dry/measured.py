"""Operators that were measured on one device in place of the roofline: their time by name and shapes, and the nearest one's
where the shapes are others."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from stepscope.core.dataclass import record
from stepscope.predict.dry.kernels import kind_of
from stepscope.records.dry_run import DryOperator, DryRank
from stepscope.records.trace_work import OperatorRow

KernelTime = Callable[[DryOperator], float]
"""Time of one call of an operator, ns."""
APART = 1.2
"""Factor between predicted times from which on two measured ones tell a rate."""
Key = tuple[str, tuple[tuple[int, ...], ...]]


@record
class Calibrated:
    """kernel_ns: what operators take. share: of the predicted time, that whose operators were measured with their shapes.
    times: ns of a call of those."""

    kernel_ns: KernelTime
    share: float
    times: Mapping[Key, float]

    def share_of(self, rank: DryRank) -> float:
        """Return the share of the time of a rank's operators that were measured with their shapes."""
        whole = covered = 0.0
        for index, count in Counter(rank.order).items():
            row = rank.operators[index]
            time = count * self.kernel_ns(row)
            whole += time
            covered += time if key_of(row) in self.times else 0.0
        return covered / whole if whole else 0.0


def calibrated(
    rank: DryRank, measured: Iterable[OperatorRow], there: KernelTime, *, here: KernelTime | None = None
) -> Calibrated:
    """Lay operators of a trace, by shapes, beside those of a dry run. there: what they are predicted to take where the
    step will run; here: where the trace is from; None: that is the same device.

    An operator takes what is predicted, times measured over predicted: its own, else that of the nearest of its name, of its
    kind, of all. Of a trace the device's time is taken, the host's where it has no device.
    """
    here = here or there
    times = _times_of(list(measured))
    points: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
    covered = whole = 0.0
    for index, count in Counter(rank.order).items():
        row = rank.operators[index]
        predicted, time = here(row), times.get(key_of(row))
        whole += predicted * count
        if time and predicted:
            covered += predicted * count
            for key in (kernel_name(row.op), kind_of(row), ""):
                points[key].append((predicted, time))

    def kernel_ns(row: DryOperator) -> float:
        predicted, time = here(row), times.get(key_of(row))
        if not predicted:
            return 0.0
        if not time:
            near = points.get(kernel_name(row.op)) or points.get(kind_of(row)) or points.get("", [(1.0, 1.0)])
            time = _time_between(near, predicted)
        return there(row) * time / predicted

    return Calibrated(kernel_ns=kernel_ns, share=covered / whole if whole else 0.0, times=times)


def _time_between(points: Sequence[tuple[float, float]], predicted: float) -> float:
    """Return the time at ``predicted``: on the line through the two nearest points where that is a fixed time and a rate,
    else in proportion to the nearest."""
    ordered = sorted(points, key=lambda point: abs(math.log(point[0] / predicted)))
    x, y = ordered[0]
    for further, time in ordered[1:]:
        if not 1 / APART < further / x < APART:
            slope = (time - y) / (further - x)
            fixed = y - slope * x
            return fixed + slope * predicted if slope >= 0 and fixed >= 0 else y * predicted / x
    return y * predicted / x


def key_of(row: DryOperator) -> Key:
    """Return by what an operator is found again: its name, and the shapes of its tensors."""
    return kernel_name(row.op), tuple(shape for shape in row.shapes if shape)


def _times_of(measured: list[OperatorRow]) -> dict[Key, float]:
    """Return the mean time of a call, ns."""
    device = any(row.device_events for row in measured)
    sums: defaultdict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in measured:
        if row.shapes is not None:
            entry = sums[kernel_name(row.name), _tensors(json.loads(row.shapes))]
            entry[0] += row.device_total_ns if device else row.host_total_ns
            entry[1] += row.calls
    return {key: spent / calls for key, (spent, calls) in sums.items() if calls}


def kernel_name(op: str) -> str:
    """Return ``mm`` of ``aten::mm`` and ``aten.mm.default``; fused attention is one operator, whoever's kernel it is."""
    name = op.split("::")[1] if "::" in op else op.split(".")[1] if "." in op else op
    if "scaled_dot_product" in name:
        return "attention_backward" if "backward" in name else "attention_forward"
    return name


def names_in(names: Container[str]) -> Callable[[str], bool]:
    """Return whether a name of the profiler is one of these, of which what is inside is a part."""
    return lambda name: "::" in name and kernel_name(name) in names


def _tensors(dims: list[Any]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of inputs as the profiler writes them: lists of tensors are taken apart, numbers left out."""
    shapes: list[tuple[int, ...]] = []
    for shape in dims:
        if shape and isinstance(shape[0], list):
            shapes += _tensors(shape)
        elif shape:
            shapes.append(tuple(shape))
    return tuple(shapes)

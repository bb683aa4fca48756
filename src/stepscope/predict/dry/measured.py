"""Operators that were measured on one device in place of the roofline: their own time by name and shapes, and their
efficiency where the shapes are others."""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from stepscope.core.dataclass import record
from stepscope.predict.dry.kernels import kind_of
from stepscope.records.dry_run import DryOperator, DryRank
from stepscope.records.trace_work import OperatorRow

KernelTime = Callable[[DryOperator], float]
"""Time of one call of an operator, ns."""
Key = tuple[str, tuple[tuple[int, ...], ...]]


@record
class Calibrated:
    """kernel_ns: what operators take. share: of the predicted time, that whose operators were measured with their shapes."""

    kernel_ns: KernelTime
    share: float


def calibrated(
    rank: DryRank, measured: Iterable[OperatorRow], there: KernelTime, *, here: KernelTime | None = None
) -> Calibrated:
    """Lay operators of a trace, by shapes, beside those of a dry run. there: what they are predicted to take where the
    step will run; here: where the trace is from; None: that is the same device.

    An operator takes what is predicted, times measured over predicted: its own, else the median of its name, of its kind, of
    all. Of a trace the device's time is taken, the host's where it has no device.
    """
    here = here or there
    times = _times_of(list(measured))
    by_name: defaultdict[str, list[float]] = defaultdict(list)
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    covered = whole = 0.0
    for index, count in Counter(rank.order).items():
        row = rank.operators[index]
        predicted, time = here(row), times.get(key_of(row))
        whole += predicted * count
        if time and predicted:
            covered += predicted * count
            by_name[_kernel_name(row.op)].append(time / predicted)
            by_kind[kind_of(row)].append(time / predicted)
    medians = {key: statistics.median(some) for key, some in (by_name | by_kind).items()}
    everywhere = statistics.median([r for some in by_name.values() for r in some]) if by_name else 1.0

    def kernel_ns(row: DryOperator) -> float:
        predicted, time = here(row), times.get(key_of(row))
        if time and predicted:
            return there(row) * time / predicted
        return there(row) * (medians.get(_kernel_name(row.op)) or medians.get(kind_of(row)) or everywhere)

    return Calibrated(kernel_ns=kernel_ns, share=covered / whole if whole else 0.0)


def key_of(row: DryOperator) -> Key:
    """Return by what an operator is found again: its name, and the shapes of its tensors."""
    return _kernel_name(row.op), tuple(shape for shape in row.shapes if shape)


def _times_of(measured: list[OperatorRow]) -> dict[Key, float]:
    """Return the mean time of a call, ns."""
    device = any(row.device_events for row in measured)
    sums: defaultdict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for row in measured:
        if row.shapes is not None:
            entry = sums[_kernel_name(row.name), _tensors(json.loads(row.shapes))]
            entry[0] += row.device_self_ns if device else row.host_self_ns
            entry[1] += row.calls
    return {key: spent / calls for key, (spent, calls) in sums.items() if calls}


def _kernel_name(op: str) -> str:
    """Return ``mm`` of ``aten::mm`` and ``aten.mm.default``; fused attention is one operator, whoever's kernel it is."""
    name = op.split("::")[1] if "::" in op else op.split(".")[1] if "." in op else op
    if "scaled_dot_product" in name:
        return "attention_backward" if "backward" in name else "attention_forward"
    return name


def _tensors(dims: list[Any]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of inputs as the profiler writes them: lists of tensors are taken apart, numbers left out."""
    shapes: list[tuple[int, ...]] = []
    for shape in dims:
        if shape and isinstance(shape[0], list):
            shapes += _tensors(shape)
        elif shape:
            shapes.append(tuple(shape))
    return tuple(shapes)

"""Operators that were measured on one device in place of the roofline: their own time by name and shapes, and their
efficiency where the shapes are others."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from stepscope.core.dataclass import record
from stepscope.predict.dry.kernels import kind_of
from stepscope.records.dry_run import DryOperator, DryRank
from stepscope.records.trace_work import OperatorRow

Key = tuple[str, tuple[tuple[int, ...], ...]]


@record
class MeasuredKernels:
    """What was measured, for one dry run. by_shapes: ns of one call; by_name, by_kind: measured over predicted time, median
    of the operators that were measured; everywhere: of all. share: of the predicted time, that whose operators were
    measured with their shapes."""

    by_shapes: dict[Key, float]
    by_name: dict[str, float]
    by_kind: dict[str, float]
    everywhere: float
    share: float

    def time_ns(self, row: DryOperator, predicted_ns: float) -> float:
        """Return the time of one call of an operator."""
        measured = self.by_shapes.get(key_of(row))
        if measured is not None or not predicted_ns:
            return measured or 0.0
        factor = self.by_name.get(_kernel_name(row.op)) or self.by_kind.get(kind_of(row)) or self.everywhere
        return predicted_ns * factor


def calibrated(
    rank: DryRank, measured: Iterable[OperatorRow], kernel_ns: Callable[[DryOperator], float]
) -> MeasuredKernels:
    """Lay operators of a trace, by shapes, beside those of a dry run. kernel_ns: what they are predicted to take.

    Device time is taken, host time where the trace has no device.
    """
    sums: defaultdict[Key, list[float]] = defaultdict(lambda: [0.0, 0.0])
    rows = list(measured)
    device = any(row.device_events for row in rows)
    for row in rows:
        spent = row.device_self_ns if device else row.host_self_ns
        if row.shapes is not None and row.calls:
            entry = sums[_kernel_name(row.name), _tensors(json.loads(row.shapes))]
            entry[0] += spent
            entry[1] += row.calls
    times = {key: spent / calls for key, (spent, calls) in sums.items()}
    ratios: defaultdict[str, list[float]] = defaultdict(list)
    kinds: defaultdict[str, list[float]] = defaultdict(list)
    covered, whole = 0.0, 0.0
    counts: defaultdict[int, int] = defaultdict(int)
    for index in rank.order:
        counts[index] += 1
    for index, count in counts.items():
        operator = rank.operators[index]
        predicted = kernel_ns(operator)
        whole += predicted * count
        time = times.get(key_of(operator))
        if time and predicted:
            covered += predicted * count
            ratios[_kernel_name(operator.op)].append(time / predicted)
            kinds[kind_of(operator)].append(time / predicted)
    every = [ratio for some in ratios.values() for ratio in some]
    return MeasuredKernels(
        by_shapes=times,
        by_name={name: statistics.median(some) for name, some in ratios.items()},
        by_kind={kind: statistics.median(some) for kind, some in kinds.items()},
        everywhere=statistics.median(every) if every else 1.0,
        share=covered / whole if whole else 0.0,
    )


def key_of(row: DryOperator) -> Key:
    """Return by what an operator is found again: its name, and the shapes of its tensors."""
    return _kernel_name(row.op), tuple(shape for shape in row.shapes if shape)


def _kernel_name(op: str) -> str:
    """Return ``mm`` of ``aten::mm`` and ``aten.mm.default``; fused attention is one operator, whoever's kernel it is."""
    name = op.split("::")[1] if "::" in op else op.split(".")[1] if "." in op else op
    if "scaled_dot_product" in name:
        return "attention_backward" if "backward" in name else "attention"
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

"""Short names of models, strategies and statuses for tables and sentences."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.records.cell import CellSpec
from stepscope.records.run import ResultRow
from stepscope.strategies import REGISTRY as STRATEGIES
from stepscope.workloads import REGISTRY as WORKLOADS

Defaults = Callable[[str], Mapping[str, Any]]

STATUS_LABELS = {
    "oom": "out of GPU memory",
    "host_oom": "out of host memory",
    "timeout": "timeout",
    "error": "error",
    "killed": "killed",
    "unsupported": "unsupported",
    "skipped": "skipped",
    "interrupted": "interrupted",
}


def strategy_defaults(key: str) -> Mapping[str, Any]:
    """Default options of a strategy; empty when it is not installed here (then every option counts as set)."""
    try:
        return STRATEGIES.load(key).options().as_dict()
    except (UsageError, ValueError):
        return {}


def model_label(row: CellSpec | ResultRow) -> str:
    """``mlp small``: the workload's own name for this model, or its options when it is not installed here."""
    try:
        workload = WORKLOADS.load(row.workload)
        return workload.label(workload.options.model_validate(dict(row.model)))
    except (UsageError, ValueError):
        return " ".join([row.workload, *(_option(k, v) for k, v in sorted(row.model.items()))])


def strategy_labels(rows: Sequence[ResultRow], *, defaults: Defaults = strategy_defaults) -> tuple[str, ...]:
    """One name a row: the strategy and its options that are not the default, or that are numbers which ``rows`` vary."""
    values: dict[tuple[str, str], set[str]] = {}
    for row in rows:
        for key, value in row.strategy_options.items():
            values.setdefault((row.strategy, key), set()).add(repr(value))
    varied = {name for name, found in values.items() if len(found) > 1}
    return tuple(
        _strategy(row, defaults(row.strategy), {key for strategy, key in varied if strategy == row.strategy})
        for row in rows
    )


def ranks_label(world_size: int) -> str:
    return "1 rank" if world_size == 1 else f"{world_size} ranks"


def failure_label(row: ResultRow) -> str:
    """``out of host memory: rank 1 on n3: ...``."""
    label = STATUS_LABELS.get(row.status, row.status)
    return f"{label}: {row.error}" if row.error else label


def _strategy(
    row: CellSpec | ResultRow, defaults: Mapping[str, Any], varied: Container[str] = frozenset()
) -> str:
    shown = [
        _option(key, value)
        for key, value in row.strategy_options.items()
        if key not in defaults or defaults[key] != value or (key in varied and _is_number(value))
    ]
    return " ".join([row.strategy, *shown])


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _option(key: str, value: Any) -> str:
    return key if value is True else f"{key}={_text(value)}"


def _text(value: Any) -> str:
    if value is None:
        return "default"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value)


def strategy_label(cell: CellSpec | ResultRow) -> str:
    """The strategy and those of its options that are not the default."""
    return _strategy(cell, strategy_defaults(cell.strategy))

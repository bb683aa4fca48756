"""HolisticTraceAnalysis' own tables, as it would print them, for checking a move to stepscope."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from stepscope.records.trace_compat import HtaFailure, HtaReport
from stepscope.report.table import Column, Table, Value, tabled, unknown
from stepscope.report.views._common import View

_TITLES = {
    "temporal": "get_temporal_breakdown",
    "overlap": "get_comm_comp_overlap",
    "kernel_types": "get_gpu_kernel_breakdown: kernel types",
    "kernels": "get_gpu_kernel_breakdown: kernels",
    "idle": "get_idle_time_breakdown",
    "queues": "get_queue_length_summary",
    "bandwidths": "get_memory_bw_summary",
}

NOTE = "HTA 0.5.0's numbers, its filters and mistakes included; the correct ones are without --compat"


def build(report: HtaReport) -> tuple[Table, ...]:
    """One table per HTA call; where HTA raises, a table of that alone."""
    tables = []
    for key, title in _TITLES.items():
        rows = getattr(report, key)
        if isinstance(rows, HtaFailure):
            columns = (Column("raises", "raises", lambda f: f.raises), Column("why", "why", lambda f: f.why))
            tables.append(tabled(f"hta_{key}", title, columns, (rows,)))
        elif rows:
            tables.append(_table(key, title, rows))
    return tuple(tables)


def _table(key: str, title: str, rows: Sequence[Any]) -> Table:
    flat = [_flat(r) for r in rows]

    def field(name: str) -> Callable[[dict[str, Any]], Value]:
        return lambda row: _value(row[name])

    columns = (
        Column(k, k, field(k), align="left" if isinstance(v, str) else "right", role=_role(k), lead=True)
        for k, v in flat[0].items()
    )
    return tabled(f"hta_{key}", title, columns, flat)


def _role(key: str) -> Any:
    return "identity" if key in ("rank", "name", "kernel_type", "stream", "category") else "measured"


def _flat(record: Any) -> dict[str, Any]:
    """Field -> value, nested records spread out."""
    result: dict[str, Any] = {}
    for field in fields(record):
        value = getattr(record, field.name)
        result |= _flat(value) if is_dataclass(value) else {field.name: value}
    return result


def _value(value: Any) -> Value:
    if value is None:
        return unknown()
    if isinstance(value, float):
        return Value(text=f"{value:.2f}", raw=value)
    text = str(value)
    return Value(text=text if len(text) <= 60 else f"{text[:40]}…{text[-19:]}", raw=value)


VIEW = View(key="trace_compat", title="HolisticTraceAnalysis' tables", needs=("report",), tables=build)

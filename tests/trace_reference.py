"""A second way to read a trace, for tests: ``json.loads`` with decimals, event by event, nothing shared with the loader."""

from __future__ import annotations

import json
from decimal import ROUND_HALF_EVEN, Decimal
from pathlib import Path
from typing import Any

from stepscope.traces.events import Category, Events

SHARED = Path(__file__).parents[2] / "shared" / "data"

Row = tuple[Any, ...]
"""ts_ns, dur_ns, category, name, pid, tid, stream, device, correlation, external id, sequence, forward thread, shapes."""

_CATEGORIES = {
    "kernel": "KERNEL", "Kernel": "KERNEL", "concurrent_kernel": "KERNEL", "gpu_memcpy": "MEMCPY",
    "Memcpy": "MEMCPY", "gpu_memset": "MEMSET", "Memset": "MEMSET", "cpu_op": "CPU_OP", "Operator": "CPU_OP",
    "cuda_runtime": "RUNTIME", "Runtime": "RUNTIME", "cuda_driver": "DRIVER", "user_annotation": "USER_ANNOTATION",
    "gpu_user_annotation": "GPU_ANNOTATION", "python_function": "PYTHON", "cuda_sync": "SYNC",
    "overhead": "OVERHEAD",
}  # fmt: skip
_ON_DEVICE = ("KERNEL", "MEMCPY", "MEMSET")


def reference_rows(text: str | bytes) -> list[Row]:
    """What the loader should say of every span of a trace's text, in file order."""
    trace = json.loads(text, parse_float=Decimal)
    events = trace["traceEvents"] if isinstance(trace, dict) else trace
    rows = []
    for event in events:
        if event.get("ph") != "X" or event.get("ts") is None or event.get("dur") is None:
            continue
        if event["dur"] < 0:
            continue
        args = event.get("args") or {}
        category = _CATEGORIES.get(event.get("cat", ""), "OTHER")
        tid = str(event.get("tid", ""))
        stream = _small(args.get("stream"))
        if stream == -1 and category in _ON_DEVICE and tid.isdigit():
            stream = int(tid)
        shapes = (args["Input Dims"], args.get("Input type")) if "Input Dims" in args else None
        rows.append(
            (
                _ns(event["ts"]),
                _ns(event["dur"]),
                category,
                event.get("name", ""),
                str(event.get("pid", "")),
                tid,
                stream,
                _small(args.get("device")),
                args.get("correlation", -1),
                args.get("External id", -1),
                args.get("Sequence number", -1),
                _small(args.get("Fwd thread id")),
                shapes,
            )
        )
    return rows


def rows_of(events: Events) -> list[Row]:
    """The same of loaded columns."""
    shapes = [(_value(s.dims), _value(s.types)) for s in events.shapes]
    columns = [
        events.ts_ns, events.dur_ns, events.category, events.name, events.thread, events.stream, events.device,
        events.correlation, events.external_id, events.sequence, events.forward_thread, events.shape,
    ]  # fmt: skip
    return [
        (
            ts,
            dur,
            Category(category).name,
            events.names[name],
            *events.threads[thread],
            stream,
            device,
            correlation,
            external,
            sequence,
            forward,
            shapes[shape] if shape >= 0 else None,
        )
        for ts, dur, category, name, thread, stream, device, correlation, external, sequence, forward, shape in zip(
            *(c.tolist() for c in columns), strict=True
        )
    ]


def _ns(microseconds: Any) -> int:
    return int((Decimal(microseconds) * 1000).to_integral_value(ROUND_HALF_EVEN))


def _small(value: Any) -> int:
    return value if isinstance(value, int) and 0 <= value < 2**31 else -1


def _value(text: str) -> Any:
    return json.loads(text, parse_float=Decimal) if text else None

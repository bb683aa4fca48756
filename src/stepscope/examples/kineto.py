"""Events as libkineto writes them: the text of a trace file, of four generations.

"relative"   us with 3 decimals since ``baseTimeNanoseconds``; one line a group of fields (2024)
"lines"      the same, every field on a line of its own, metadata events first (torch 2.13)
"absolute"   us with 3 decimals since 1970: too many digits for a float
"whole"      whole us since 1970, capitalised categories: ``Kernel``, ``Operator`` (2021)
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

BASE_TIME_NS = 1_735_632_360_000_000_000

_CAPITALISED = {
    "kernel": "Kernel", "gpu_memcpy": "Memcpy", "gpu_memset": "Memset", "cpu_op": "Operator",
    "cuda_runtime": "Runtime",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """One event. ``dur_ns`` None: an instant (ph i). Flow and metadata events: ``ph`` s, f or M, ``flow_id``."""

    cat: str
    name: str
    ts_ns: int
    dur_ns: int | None = None
    pid: int | str = 100
    tid: int | str = 100
    ph: str = "X"
    flow_id: int = 0
    args: dict[str, Any] = field(default_factory=dict)


def distributed_info(rank: int, world: int, *, backend: str, groups: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The ``distributedInfo`` of a header; ``groups`` maps a group's name to its ranks."""
    config = [
        {"pg_name": name, "pg_desc": "default_pg" if name == "0" else f"mesh_{name}",
         "backend_config": f"cuda:{backend}", "pg_size": len(ranks), "ranks": list(ranks)}
        for name, ranks in groups.items()
    ]  # fmt: skip
    return {
        "backend": backend,
        "rank": rank,
        "world_size": world,
        "pg_count": len(config),
        "pg_config": config,
    }


def trace_text(events: Sequence[Planted], header: Mapping[str, Any], *, generation: str = "relative") -> str:
    """The text of one trace file; ``header`` holds what stands beside the events."""
    header = {"schemaVersion": 1, **header}
    if generation in ("relative", "lines"):
        header["baseTimeNanoseconds"] = BASE_TIME_NS
    lines = generation == "lines"
    metadata = [e for e in events if e.ph == "M"]
    rest = [e for e in events if e.ph != "M"]
    ordered = [*metadata, *rest] if lines else [*rest, *metadata]
    head = "".join(f'  "{key}": {json.dumps(value)},\n' for key, value in header.items())
    body = ",\n".join(_event(e, generation) for e in ordered)
    if lines:
        return f' {{\n{head}  "traceEvents": [\n    \n{body}\n  ],"traceName": "trace.json" }}'
    return f'\n{{\n{head}  "traceEvents": [\n{body}\n  ],\n  "traceName": "trace.json"\n}}\n'


def _event(event: Planted, generation: str) -> str:
    new_line = ",\n    " if generation == "lines" else ", "
    name, pid, tid = _json(event.name), _json(event.pid), _json(event.tid)
    place = f'"pid": {pid}{new_line}"tid": {tid}'
    time = f'"ts": {_time(event.ts_ns, generation)}'
    args = ", ".join(f'"{key}": {_json(value)}' for key, value in event.args.items())
    args = f',\n    "args": {{\n      {args}\n    }}'
    cat = _CAPITALISED.get(event.cat, event.cat) if generation == "whole" else event.cat
    if event.ph == "M":
        fields = new_line.join([f'"name": {name}', '"ph": "M"', time, place]) + args
    elif event.ph in "sf":
        end = ', "bp": "e"' if event.ph == "f" else ""
        kind = new_line.join([f'"ph": "{event.ph}"', f'"id": {event.flow_id}', place, time])
        fields = f'{kind},\n    "cat": "{cat}"{new_line}"name": {name}{end}'
    elif event.ph == "i" or event.dur_ns is None:
        kind = new_line.join(['"ph": "i"', f'"cat": "{cat}"', '"s": "t"', f'"name": {name}'])
        fields = f"{kind},\n    {place},\n    {time}{args}"
    elif cat == "Trace" and generation != "lines":
        duration = f'"dur": {_time(event.dur_ns, generation)}'
        fields = f'"ph": "X", "cat": "Trace", {time}, {duration},\n    {place},\n    "name": {name}{args}'
    else:
        duration = f'"dur": {_time(event.dur_ns, generation)}'
        kind = new_line.join(['"ph": "X"', f'"cat": "{cat}"', f'"name": {name}', place])
        fields = f"{kind},\n    {time}{new_line}{duration}{args}"
    return f"  {{\n    {fields}\n  }}"


def _json(value: Any) -> str:
    """As ``json.dumps``, which takes most of the time that a trace takes to write where it is asked for each number."""
    if type(value) is int:
        return str(value)
    return _quoted(value) if isinstance(value, str) else json.dumps(value)


@lru_cache(maxsize=4096)
def _quoted(text: str) -> str:
    return json.dumps(text)


def _time(ns: int, generation: str) -> str:
    if generation == "whole":
        if ns % 1000:
            raise ValueError(f"{ns} ns cannot be written in whole microseconds")
        return str(ns // 1000)
    return f"{ns // 1000}.{ns % 1000:03d}"

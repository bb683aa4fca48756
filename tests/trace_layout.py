"""Trace events -> the text of a trace file, in the layouts that profilers and tools write, and packed.

    text(events, header=..., layout="kineto", generation="relative")   one file's text
    write(path, text)                                                  packed by what its name ends in
    rewritten(text, "sorted")                                          the same trace, dumped again

Generations (what Kineto wrote over the years)
    "relative"   us with 3 decimals since ``baseTimeNanoseconds``; one line a group of fields (2024)
    "lines"      the same, every field on a line of its own, metadata events first (torch 2.13)
    "absolute"   us with 3 decimals since 1970: too many digits for a float
    "whole"      whole us since 1970, capitalised categories: ``Kernel``, ``Operator`` (2021)
Layouts: "kineto", "compact", "default" (``json.dumps``), "indent1", "indent2", "indent4", "sorted", "bare"
(no header: an array of events). Packings, by name: ``.json``, ``.json.gz``, ``.json.zst``, ``.members.json.gz``
(a gzip file of several members).
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

GENERATIONS = ("relative", "lines", "absolute", "whole")
LAYOUTS = ("kineto", "compact", "default", "indent1", "indent2", "indent4", "sorted", "bare")
PACKINGS = (".json", ".json.gz", ".json.zst", ".members.json.gz")
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


def text(
    events: Sequence[Planted],
    *,
    header: dict[str, Any] | None = None,
    layout: str = "kineto",
    generation: str = "relative",
) -> str:
    """The text of one trace file."""
    header = {"schemaVersion": 1, **(header or {})}
    if generation in ("relative", "lines"):
        header["baseTimeNanoseconds"] = BASE_TIME_NS
    if layout == "kineto":
        return _kineto(events, header, generation)
    return rewritten(_kineto(events, header, generation), layout)


def rewritten(kineto_text: str, layout: str) -> str:
    """The same trace as a tool dumps it; the digits of its times are kept (as decimal-aware tools do)."""
    trace = json.loads(kineto_text, parse_float=lambda digits: f"\0{digits}\0")
    if layout == "bare":
        trace = trace["traceEvents"]
    indent = {"indent1": 1, "indent2": 2, "indent4": 4}.get(layout)
    separators = (",", ":") if layout == "compact" else None
    again = json.dumps(trace, indent=indent, separators=separators, sort_keys=layout == "sorted")
    return again.replace('"\\u0000', "").replace('\\u0000"', "")


def write(path: Path, content: str | bytes) -> Path:
    """Write the text, packed by the ending of the path's name; returns the path."""
    data = content.encode() if isinstance(content, str) else content
    if path.name.endswith(".members.json.gz"):
        third = len(data) // 3 + 1
        parts = [data[i : i + third] for i in range(0, len(data), third)]
        data = b"".join(gzip.compress(p, 6) for p in parts)
    elif path.name.endswith(".gz"):
        data = gzip.compress(data, 6)
    elif path.name.endswith(".zst"):
        data = zstandard.ZstdCompressor().compress(data)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def distributed_info(rank: int, world: int, *, backend: str = "nccl", groups: Any = None) -> dict[str, Any]:
    """The ``distributedInfo`` of a header; ``groups`` maps a group's name to its ranks."""
    config = [
        {"pg_name": name, "pg_desc": "default_pg" if name == "0" else f"mesh_{name}",
         "backend_config": f"cuda:{backend}", "pg_size": len(ranks), "ranks": list(ranks)}
        for name, ranks in (groups or {"0": range(world)}).items()
    ]  # fmt: skip
    return {
        "backend": backend,
        "rank": rank,
        "world_size": world,
        "pg_count": len(config),
        "pg_config": config,
    }


def _kineto(events: Sequence[Planted], header: dict[str, Any], generation: str) -> str:
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
    name, pid, tid = json.dumps(event.name), json.dumps(event.pid), json.dumps(event.tid)
    place = f'"pid": {pid}{new_line}"tid": {tid}'
    time = f'"ts": {_time(event.ts_ns, generation)}'
    args = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in event.args.items())
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


def _time(ns: int, generation: str) -> str:
    if generation == "whole":
        if ns % 1000:
            raise ValueError(f"{ns} ns cannot be written in whole microseconds")
        return str(ns // 1000)
    return f"{ns // 1000}.{ns % 1000:03d}"

"""The text of a trace file in the layouts that tools write, and packed.

    write(path, text)                                                  packed by what its name ends in
    rewritten(text, "sorted")                                          the same trace, dumped again

Layouts: "kineto", "compact", "default" (``json.dumps``), "indent1", "indent2", "indent4", "sorted", "bare"
(no header: an array of events). Packings, by name: ``.json``, ``.json.gz``, ``.json.zst``, ``.members.json.gz``
(a gzip file of several members).
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import zstandard

GENERATIONS = ("relative", "lines", "absolute", "whole")
LAYOUTS = ("kineto", "compact", "default", "indent1", "indent2", "indent4", "sorted", "bare")
PACKINGS = (".json", ".json.gz", ".json.zst", ".members.json.gz")


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

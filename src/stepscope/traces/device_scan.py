"""The fast path for budget and overlap: only device events and step annotations, in one pattern pass.

Works on Kineto's own layout alone, where one line holds ``"cat"``, ``"name"``, ``"pid"`` and ``"tid"`` in this
order. Every block is checked by counting its categories: one that does not add up is to be decoded in full.
"""

from __future__ import annotations

import re

_CATEGORIES = (b'"cat": "kernel"', b'"cat": "gpu_mem', b'"cat": "Kernel"', b'"cat": "Mem')
_OTHER_DEVICE = b'"cat": "concurrent_kernel"'
_EVENT = re.compile(
    rb'"cat": "(kernel|gpu_memcpy|gpu_memset|Kernel|Memcpy|Memset'
    rb'|user_annotation(?=", "name": "ProfilerStep#))", "name": "([^"]*)", '
    rb'"pid": ([^,\n]*), "tid": ([^,\n]*),\s+"ts": ([0-9.]+), "dur": ([0-9.]+)(?=[,\s])'
)

Row = tuple[bytes, bytes, bytes, bytes, bytes, bytes]
"""cat, name (still JSON-escaped), pid, tid, ts, dur: as they stand in the file."""


def device_rows(block: bytes) -> list[Row] | None:
    """Device events and ``ProfilerStep`` annotations of a block; None when the block must be decoded instead."""
    rows: list[Row] = _EVENT.findall(block)
    expected = sum(block.count(c) for c in _CATEGORIES)
    found = sum(not r[0].startswith(b"user") for r in rows)
    return rows if found == expected and _OTHER_DEVICE not in block else None

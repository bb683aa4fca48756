"""The fast path for budget and overlap: only device events and step annotations, in one pattern pass.

The keys ``"cat"``, ``"name"``, ``"pid"``, ``"tid"``, ``"ts"`` and ``"dur"`` follow each other in this order in what
Kineto writes, and in what other JSON writers make of it. The pattern finds every event of these categories whatever
follows; a block with one that is written otherwise is to be decoded in full.
"""

from __future__ import annotations

import re
from functools import cache
from operator import itemgetter


@cache
def _pattern(colon: bytes, comma: bytes) -> re.Pattern[bytes]:
    text = (
        rb'"cat":"(kernel|gpu_mem[a-z]*|Kernel|Mem[a-z]*|concurrent_kernel|user_annotation)"'
        rb'(?:,"name":"([^"]*)","pid":([^,\n]*),"tid":([^,\n]*),"ts":([0-9.]+),"dur":([0-9.]+)(?=[,\s}]))?'
    )
    text = text.replace(b'":', b'"' + colon).replace(b',"', comma + b'"')
    return re.compile(text)


_KINETO = rb": ", rb",\s+"  # a longer literal beginning is found faster
_ANY_LAYOUT = rb"\s*:\s*", rb"\s*,\s*"
_READ = frozenset((b"kernel", b"gpu_memcpy", b"gpu_memset", b"Kernel", b"Memcpy", b"Memset", b"user_annotation"))

Row = tuple[bytes, bytes, bytes, bytes, bytes, bytes]
"""cat, name (still JSON-escaped), pid, tid, ts, dur: as they stand in the file."""


def device_rows(block: bytes, *, kineto: bool = True) -> list[Row] | None:
    """Device events and ``ProfilerStep`` annotations of a block; None when the block must be decoded instead.

    kineto: the profiler's own layout, its spaces included.
    """
    rows: list[Row] = _pattern(*(_KINETO if kineto else _ANY_LAYOUT)).findall(block)
    if not _READ.issuperset(map(itemgetter(0), rows)):
        return None
    if not all(map(itemgetter(5), rows)):
        return None
    return [r for r in rows if r[0] != b"user_annotation" or r[1].startswith(b"ProfilerStep#")]

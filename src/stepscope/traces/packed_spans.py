"""Span sets as short text, for records: what the edges are from each other, in a unit, seven bits a byte, in base64."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

from stepscope.records.trace_collectives import ExactSpans
from stepscope.stats.spans import EMPTY, Spans, union

Ints = NDArray[np.int64]


def exact(given: Spans) -> ExactSpans:
    """``given`` to the ns."""
    start = int(given.starts[0]) if len(given) else 0
    return ExactSpans(start_ns=start, packed=pack(given, origin=start, unit=1))


def spans_of(given: ExactSpans) -> Spans:
    """The inverse of :func:`exact`."""
    return unpack(given.packed, origin=given.start_ns, unit=1) if given.packed else EMPTY


def pack(given: Spans, *, origin: int, unit: int) -> str:
    """``given`` as ``records.trace_budget.KindSpans.packed``. Spans shorter than a unit become one long.

    Gaps must be 2 units or more, or the unit 1.
    """
    starts = (given.starts - origin + unit // 2) // unit
    ends = np.maximum((given.ends - origin + unit // 2) // unit, starts + 1)
    numbers = np.empty(2 * len(starts), dtype=np.uint64)
    numbers[0::2] = np.concatenate([starts[:1], starts[1:] - ends[:-1]])
    numbers[1::2] = ends - starts
    return base64.b64encode(_leb128(numbers)).decode()


def unpack(packed: str, *, origin: int, unit: int) -> Spans:
    """The inverse of :func:`pack`, to within a unit."""
    numbers = _numbers(base64.b64decode(packed))
    edges = np.cumsum(numbers) * unit + origin
    return union(edges[0::2], edges[1::2])


def _leb128(numbers: NDArray[np.uint64]) -> bytes:
    """Seven bits a byte, lowest first, the top bit set on all but a number's last byte."""
    sizes = np.ones(len(numbers), dtype=np.int64)
    for bits in range(7, 64, 7):
        sizes += numbers >= np.uint64(1 << bits)
    ends = np.cumsum(sizes)
    out = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    begins = ends - sizes
    for place in range(int(sizes.max(initial=0))):
        mine = sizes > place
        byte = (numbers[mine] >> np.uint64(7 * place)) & np.uint64(0x7F)
        more = (sizes[mine] > place + 1).astype(np.uint64) << np.uint64(7)
        out[begins[mine] + place] = (byte | more).astype(np.uint8)
    return out.tobytes()


def _numbers(data: bytes) -> Ints:
    """What :func:`_leb128` wrote."""
    raw = np.frombuffer(data, dtype=np.uint8)
    if not len(raw):
        return np.zeros(0, dtype=np.int64)
    last = np.flatnonzero(raw < 0x80)
    begins = np.concatenate([[0], last[:-1] + 1])
    place = np.arange(len(raw)) - np.repeat(begins, last - begins + 1)
    parts = (raw & 0x7F).astype(np.int64) << (7 * place)
    sums: Ints = np.add.reduceat(parts, begins)
    return sums

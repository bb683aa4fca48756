"""What a rank did when, as a timeline draws it: spans by kind, packed small. Times in ns."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass

KINDS = ("compute", "hidden_comm", "exposed_comm", "copies")
"""compute, exposed_comm, copies and idle time (what is left) tile the window as in ``trace_budget.Parts``; hidden_comm
lies under compute. copies: under neither computation nor communication."""

WAITING = {"exposed_comm": "exposed_wait", "hidden_comm": "hidden_wait"}
"""Kind of communication -> the part of it that is waiting for a rank that has not arrived, once ranks are compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KindSpans:
    """The spans of one kind. total_ns, count: of the spans as they were, whatever was merged since.

    kept: spans in ``packed``: base64 of LEB128 numbers, by turns the gap since the last span's end and the span's length,
    in units of ``RankSpans.unit_ns``; the first gap is from ``RankSpans.start_ns``.
    """

    kind: str
    total_ns: int
    count: int
    kept: int
    packed: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedSpan:
    """One of the longest events, with its kernel's, collective's or operator's name."""

    start_ns: int
    duration_ns: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleSpan:
    """One of the longest gaps in a rank's work. cause: as in ``trace_budget.IdleCause``, the one with most of the gap."""

    start_ns: int
    duration_ns: int
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSpans:
    """One rank's timeline. source: device | cpu_spans. start_ns, window_ns: first start to last end, on its own clock.

    merged_ns: gaps up to this length were closed to make the spans fewer; 0: they are as recorded. Edges are within
    ``unit_ns`` of the true ones.
    """

    rank: int
    source: str
    start_ns: int
    window_ns: int
    unit_ns: int
    merged_ns: int
    kinds: tuple[KindSpans, ...]
    named: tuple[NamedSpan, ...] = ()
    gaps: tuple[IdleSpan, ...] = ()

"""The slow pairs of ranks, worst first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stepscope.core.words import ranges
from stepscope.records.comm import CommRow
from stepscope.report.table import Column, Raw, Table, Value, byte_size, tabled, times, whole
from stepscope.report.view import View
from stepscope.report.views._comm import gigabytes, microseconds
from stepscope.results.slow_pairs import SlowEnd, SlowPair, slow_pairs

MAX_LISTED = 20


def build(rows: Sequence[CommRow]) -> Table:
    """Slow ends first (a rank or host with most of its pairs), then slow pairs that no end explains, worst first.

    Without any: no rows and no footnotes.
    """
    lines: list[Line] = []
    notes = []
    for verdict in slow_pairs(rows):
        lines += [(verdict.world_size, end) for end in verdict.ends]
        single = [pair for pair in verdict.pairs if not pair.explained]
        lines += [(verdict.world_size, pair) for pair in single[:MAX_LISTED]]
        if len(single) > MAX_LISTED:
            notes.append(f"{len(single) - MAX_LISTED} more slow measurements on {verdict.world_size} ranks")
    return tabled(
        "comm_slow_pairs",
        "Slow pairs",
        (
            Column("world_size", "world", lambda line: line[0], whole, role="identity", drop=1),
            Column("pair", "pair", lambda line: _name(line[1]), role="identity", lead=True),
            Column("size_bytes", "size", _of_pair(lambda pair: pair.size_bytes), byte_size, role="identity"),
            Column("path", "path", _of_pair(lambda pair: pair.path or None), role="identity"),
            Column("time_ns", "best (us)", _of_pair(lambda pair: pair.time_ns), microseconds),
            Column("typical_ns", "usual (us)", _of_pair(lambda pair: pair.typical_ns), microseconds),
            Column("ratio", "slower", lambda line: _ratio(line[1]), times),
            Column(
                "rate", "best (GB/s)", _of_pair(lambda pair: pair.size_bytes / pair.time_ns * 1e9), gigabytes, drop=2
            ),
            Column("seen", "seen", lambda line: _seen(line[1])),
        ),
        lines,
        footnotes=(
            "best: the pair's fastest call; usual: the lower quartile of that over the pairs of the same size and path;"
            " slower: their ratio (of a rank with most of its pairs slow: its median).",
        ),
        notes=tuple(notes),
    )


Line = tuple[int, SlowEnd | SlowPair]
"""World size, and what is slow in it."""


def _of_pair(get: Callable[[SlowPair], Raw]) -> Callable[[Line], Raw]:
    return lambda line: get(line[1]) if isinstance(line[1], SlowPair) else None


def _name(slow: SlowEnd | SlowPair) -> str:
    if isinstance(slow, SlowPair):
        sender, receiver = slow.peer
        return f"{sender} <-> {receiver}" if slow.bidirectional else f"{sender} -> {receiver}"
    ranks = ranges(slow.ranks)
    who = ranks if slow.host is None else f"{ranks} ({slow.host})"
    return {"egress": f"{who} -> any", "ingress": f"any -> {who}", "both": f"{who} <-> any"}[slow.direction]


def _ratio(slow: SlowEnd | SlowPair) -> Value:
    return times(slow.ratio, tone="warn" if isinstance(slow, SlowPair) and not slow.confirmed else "bad")


def _seen(slow: SlowEnd | SlowPair) -> str:
    if isinstance(slow, SlowPair):
        return "in several measurements" if slow.confirmed else "once"
    return f"in {slow.slow} of {slow.of} pairs"


VIEW = View(key="comm_slow_pairs", title="Slow pairs", needs=("comm_rows",), table=build)

"""Messages between every two ranks as a heat map: who sends to whom how fast, slow pairs framed."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stepscope.core.words import counted, grouped
from stepscope.records.comm import CommRow
from stepscope.report.table import UNKNOWN, Column, Table, Value, byte_size, said, tabled, unknown, whole
from stepscope.report.vega import COLORS, COLUMN, Spec, layer, name_axis, sig, size_tick
from stepscope.report.vega import chart as chart_
from stepscope.report.view import Figures, View
from stepscope.report.views._comm import gigabytes, microseconds
from stepscope.results.comm_labels import (
    LATENCY_BYTES,
    cells_of,
    device_label,
    failure_label,
    network_label,
    ranks_label,
)
from stepscope.results.slow_pairs import SLOW, PairsVerdict, slow_pairs

_SHOWN = {"busbw": (1e-9, "dark is small", "busbw (GB/s)"), "time": (1e-3, "dark is large", "time (µs)")}
"""Quantity -> scale for people, which end of it is dark (the bad one), label."""

MAX_WRITTEN = 8
"""Up to this many ranks the figures stand in the cells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairsChart:
    """One quantity of every pair, [sender][receiver]; None: not measured.

    quantity: ``busbw`` (bytes/s), ``time`` (ns) of small messages. slow: (sender, receiver). ends: who explains them.
    """

    key: str
    title: str
    size_bytes: int
    bidirectional: bool
    hosts: tuple[str, ...]
    quantity: Literal["busbw", "time"]
    values: tuple[tuple[float | None, ...], ...]
    slow: tuple[tuple[int, int], ...]
    ends: tuple[str, ...]
    compared: bool


def prepare(rows: Sequence[CommRow]) -> tuple[PairsChart, ...]:
    """One chart for each cell, size and direction of the ``pairs`` rows."""
    verdicts = {verdict.cell_id: verdict for verdict in slow_pairs(rows)}
    charts: list[PairsChart] = []
    for number, (cell_id, cell) in enumerate(cells_of(rows, "pairs").items(), start=1):
        known = (r for r in cell if r.peer is not None and r.size_bytes and r.busbw_bytes_per_s and r.time_ns_median)
        kinds = grouped(known, lambda row: (row.size_bytes or 0, row.bidirectional))
        charts += [_chart(kind, found, verdicts[cell_id], number) for kind, found in kinds.items()]
    return tuple(charts)


def _chart(kind: tuple[int, bool], rows: Sequence[CommRow], verdict: PairsVerdict, number: int) -> PairsChart:
    size, both = kind
    ranks = range(verdict.world_size)
    small = size <= LATENCY_BYTES
    rate = {row.peer: row.time_ns_median if small else row.busbw_bytes_per_s for row in rows}
    if both:  # measured once for the two of them
        rate |= {(b, a): value for (a, b), value in ((p, v) for p, v in rate.items() if p is not None)}
    slow = {p.peer for p in verdict.pairs if (p.size_bytes, p.bidirectional) == kind}
    if both:
        slow |= {(b, a) for a, b in slow}
    way = "both ways" if both else "one way"
    again = f"-{number}" if number > 1 else ""
    return PairsChart(
        key=f"{verdict.world_size}-ranks-{size}-{way.replace(' ', '-')}{again}",
        title=f"{size_tick(size)} {way}, {counted(verdict.world_size, 'rank')}, {device_label(rows[0])}",
        size_bytes=size,
        bidirectional=both,
        hosts=max((row.rank_hosts for row in rows), key=len),
        quantity="time" if small else "busbw",
        values=tuple(tuple(rate.get((a, b)) for b in ranks) for a in ranks),
        slow=tuple(sorted(slow)),
        ends=tuple(_end_name(end.host, end.ranks, end.direction) for end in verdict.ends),
        compared=verdict.compared > 0,
    )


def _end_name(host: str | None, ranks: Sequence[int], direction: str) -> str:
    who = f"rank {', '.join(map(str, ranks))}" if host is None else f"{host} (rank {', '.join(map(str, ranks))})"
    return f"{who} {'in and out' if direction == 'both' else 'out' if direction == 'egress' else 'in'}"


def chart(data: PairsChart) -> Spec:
    """A cell for each sender (down) and receiver (across); few ranks have the figures written in them."""
    scale, scheme, label = _SHOWN[data.quantity]
    ranks = len(data.values)
    several = len(set(data.hosts)) > 1 and ranks <= MAX_WRITTEN and max(map(len, data.hosts)) <= 12
    called = [f"{data.hosts[rank]} {rank}" if several else str(rank) for rank in range(ranks)]
    unit = label.partition("(")[2].rstrip(")")
    known = [value * scale for line in data.values for value in line if value is not None]
    largest = max(known)
    slow = set(data.slow)
    cells = [
        {
            "sender": called[sender],
            "receiver": str(receiver),
            "value": sig(value * scale),
            "text": _short(value * scale, largest),
            "said": f"{called[sender]} to {receiver}: {value * scale:.3g} {unit}"
            + (", slow" if (sender, receiver) in slow else ""),
        }
        for sender, line in enumerate(data.values)
        for receiver, value in enumerate(line)
        if value is not None
    ]
    hue = {
        "field": "value",
        "type": "quantitative",
        "scale": {"scheme": "cividis", "domain": [0, sig(largest)], "reverse": scheme == "dark is large"},
        "legend": {"title": label, "orient": "right", "gradientLength": 120, "gradientThickness": 8, "tickCount": 4},
    }
    layers = [layer("rect", cells, {"color": hue})]
    if ranks <= MAX_WRITTEN:
        dark = f"datum.value / {sig(largest)} {'<' if data.quantity == 'busbw' else '>'} 0.5"
        ink = {"condition": {"test": dark, "value": "white"}, "value": "#1c2126"}
        bare = [{k: v for k, v in cell.items() if k != "said"} for cell in cells]
        layers.append(layer("text", bare, {"text": {"field": "text"}, "color": ink}, fontSize=5.5))
    framed = [{"sender": called[a], "receiver": str(b)} for a, b in data.slow]
    if framed:
        layers.append(layer("rect", framed, color="transparent", stroke=COLORS[1], strokeWidth=1.6))
    every = max(1, -(-ranks // 16))
    down = name_axis("sender", called, "sender (host, rank)" if several else "sender (rank)", values=called[::every])
    numbers = [str(rank) for rank in range(ranks)]
    across = name_axis("receiver", numbers, "receiver (rank)", values=numbers[::every])
    for axis in (down, across):
        axis["scale"] = {"domain": axis["scale"]["domain"], "padding": 0.04 if ranks <= 32 else 0}
    return chart_(data.title, layers, width=COLUMN, height=150, x=across, y=down)


def _short(value: float, largest: float) -> str:
    """Three digits at most, the same decimals in all cells."""
    places = 0 if largest >= 100 else 1 if largest >= 10 else 2 if largest >= 1 else 3
    return f"{value:.{places}f}"


def caption(data: PairsChart) -> str:
    scale, _, label = _SHOWN[data.quantity]
    found = sorted(v * scale for line in data.values for v in line if v is not None)
    what, unit = label.rstrip(")").split(" (")
    if not data.compared:
        verdict = "Too few pairs are alike to call one of them slow."
    elif not data.slow:
        verdict = "No pair is slow against its like."
    else:
        explained = f"; explained by {', '.join(data.ends)}" if data.ends else ""
        verdict = f"Framed: {counted(len(data.slow), 'slow cell')} of {len(found)}{explained}."
    way = "both ways at once" if data.bidirectional else "one way at a time"
    return (
        f"{what.capitalize() if what == 'time' else what} of messages of {size_tick(data.size_bytes)} from each rank (down)"
        f" to each other (across), {way}: {found[0]:.3g} to {found[-1]:.3g} {unit}, median"
        f" {statistics.median(found):.3g}. {verdict}"
    )


MARK = "*"
MAX_MATRIX = 32
"""Wider matrices are not for eyes: the list of slow pairs and the heat map say it."""


def build(rows: Sequence[CommRow]) -> Table:
    """One matrix for each size and direction of the ``pairs`` rows, those of one cell after each other."""
    verdicts = {verdict.cell_id: verdict for verdict in slow_pairs(rows)}
    cells = cells_of(rows, "pairs")
    width = min(max((cell[0].world_size for cell in cells.values()), default=0), MAX_MATRIX)
    wide = sorted({cell[0].world_size for cell in cells.values() if cell[0].world_size > MAX_MATRIX})

    def receiver(rank: int) -> Column:
        return Column(f"to_{rank}", str(rank), lambda line: line.value(rank), whole, drop=width - rank)

    table = tabled(
        "comm_pairs",
        "Pairs of ranks",
        (
            Column("world", "ranks", lambda line: said(line.world, line.cell[0].world_size), role="group"),
            Column("size_bytes", "size", lambda line: line.size, unit="bytes", role="group"),
            Column("direction", "direction", lambda line: line.direction, role="group"),
            Column("quantity", "quantity", lambda line: line.quantity, role="group"),
            Column("sender", "from \\ to", lambda line: line.sent_by, role="identity", lead=True),
            *(receiver(rank) for rank in range(width)),
        ),
        (
            line
            for cell_id, cell in cells.items()
            if cell[0].world_size <= MAX_MATRIX
            for line in _lines(cell, verdicts[cell_id])
        ),
        failure=lambda line: line.failure,
        notes=(
            *(f"the matrix of {counted(n, 'rank')} is left out: more than {MAX_MATRIX} columns" for n in wide),
            *dict.fromkeys(verdict.unavailable for verdict in verdicts.values() if verdict.unavailable),
        ),
    )
    return replace(table, footnotes=(_FOOTNOTE,) if cells else ())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Line:
    """What one rank sends, at one size and direction; sender None: all pairs of a cell that failed."""

    cell: Sequence[CommRow]
    size_bytes: int | None = None
    both: bool = False
    sender: int | None = None
    found: Mapping[tuple[int, int], CommRow]
    slow: frozenset[tuple[int, bool, tuple[int, int]]] = frozenset()
    failure: str | None = None

    @property
    def world(self) -> str:
        first = self.cell[0]
        ranks = f"{ranks_label(first)}, {device_label(first)}"
        return f"{ranks}, {network_label(first)}" if first.network else ranks

    @property
    def size(self) -> Value:
        return said(UNKNOWN) if self.size_bytes is None else byte_size(self.size_bytes)

    @property
    def direction(self) -> str:
        return UNKNOWN if self.sender is None else "both ways at once" if self.both else "one way"

    @property
    def quantity(self) -> str:
        return (
            UNKNOWN if self.size_bytes is None else "time (us)" if self.size_bytes <= LATENCY_BYTES else "busbw (GB/s)"
        )

    @property
    def sent_by(self) -> Value:
        if self.sender is None:
            return said("all pairs")
        hosts = max((row.rank_hosts for row in self.cell), key=len)
        several = self.sender < len(hosts) and len(set(hosts)) > 1
        return said(f"{self.sender} {hosts[self.sender]}" if several else str(self.sender), self.sender)

    def value(self, receiver: int) -> Value:
        if self.sender is None or self.size_bytes is None:
            return unknown()
        peer = self.sender, receiver
        return _value(self.found, peer, both=self.both, slow=(self.size_bytes, self.both, peer) in self.slow)


def _lines(cell: Sequence[CommRow], verdict: PairsVerdict) -> list[_Line]:
    slow = frozenset((p.size_bytes, p.bidirectional, p.peer) for p in verdict.pairs)
    kinds: dict[tuple[int, bool], dict[tuple[int, int], CommRow]] = {}
    for row in cell:
        if row.peer is not None and row.size_bytes is not None:
            kinds.setdefault((row.size_bytes, row.bidirectional), {})[row.peer] = row
    lines = [
        _Line(cell=cell, size_bytes=size, both=both, sender=sender, found=found, slow=slow)
        for (size, both), found in kinds.items()
        for sender in range(cell[0].world_size)
    ]
    failed = next((row for row in cell if row.status != "ok" and row.peer is None), None)
    if failed is not None:
        lines.append(_Line(cell=cell, found={}, failure=failure_label(failed)))
    return lines


def _value(found: Mapping[tuple[int, int], CommRow], peer: tuple[int, int], *, both: bool, slow: bool) -> Value:
    if peer[0] == peer[1]:
        return Value(text="·", raw=None, tone="dim")
    row = found.get(peer)
    if row is None and both and (peer[1], peer[0]) in found:
        return Value(text="", raw=None)  # stands on the other side of the diagonal
    value = unknown() if row is None else _quantity(row)
    if value.raw is None:
        return value
    return replace(value, text=f"{MARK}{value.text}", tone="bad") if slow else value


def _quantity(row: CommRow) -> Value:
    """Raw in ns or bytes/s."""
    if (row.size_bytes or 0) <= LATENCY_BYTES:
        return microseconds(row.time_ns_median)
    return gigabytes(row.busbw_bytes_per_s)


_FOOTNOTE = (
    "time: of the slower of the two ranks, median over the calls; busbw = size / time, both ways at once: per direction"
    f" (GB = 1e9 bytes). {MARK} slow: its best call took at least {SLOW:.2f}x as long as that of its like, and"
    " longer than their scatter explains."
)


VIEW = View(
    key="pairs",
    title="Pairs of ranks",
    needs=("comm_rows",),
    table=build,
    figures=Figures(needs=("rows",), prepare=prepare, chart=chart, caption=caption),
)

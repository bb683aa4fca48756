"""Messages between every two ranks as a heat map: who sends to whom how fast, slow pairs framed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from stepscope.core.words import counted
from stepscope.records.comm import CommRow
from stepscope.report.vega import COLORS, COLUMN, Spec, layer, name_axis, sig, size_tick
from stepscope.report.vega import chart as chart_
from stepscope.report.views._common import Figures, View
from stepscope.results.comm_labels import LATENCY_BYTES, cells_of, device_label
from stepscope.results.slow_pairs import PairsVerdict, slow_pairs

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
        kinds: dict[tuple[int, bool], list[CommRow]] = {}
        for row in cell:
            if row.peer is not None and row.size_bytes and row.busbw_bytes_per_s and row.time_ns_median:
                kinds.setdefault((row.size_bytes, row.bidirectional), []).append(row)
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


VIEW = View(
    key="pairs",
    title="Pairs of ranks",
    figures=Figures(
        needs=("rows",),
        prepare=prepare,
        chart=chart,
        caption=caption,
    ),
)

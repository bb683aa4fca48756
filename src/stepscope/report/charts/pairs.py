"""Messages between every two ranks as a heat map: who sends to whom how fast, slow pairs framed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from stepscope.core.words import counted
from stepscope.records.comm import CommRow
from stepscope.report.charts._common import Chart
from stepscope.report.charts._style import BAD, COLUMN_INCHES, INK, size_tick
from stepscope.results.comm_labels import LATENCY_BYTES, cells_of, device_label
from stepscope.results.slow_pairs import PairsVerdict, slow_pairs

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_SHOWN = {"busbw": (1e-9, "cividis", "busbw (GB/s)"), "time": (1e-3, "cividis_r", "time (µs)")}
"""Quantity -> scale for people, colours (dark: bad), label."""

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


def draw(data: PairsChart, axes: Axes) -> None:
    import numpy as np
    from matplotlib.colors import Normalize
    from matplotlib.patches import Rectangle

    scale, cmap, label = _SHOWN[data.quantity]
    values = np.array([[np.nan if v is None else v * scale for v in line] for line in data.values])
    ranks = len(data.values)
    norm = Normalize(0.0, float(np.nanmax(values)))
    image = axes.imshow(np.ma.masked_invalid(values), cmap=cmap, norm=norm, zorder=1)
    axes.grid(visible=False)
    for sender in range(ranks):
        axes.add_patch(Rectangle((sender - 0.5, sender - 0.5), 1, 1, facecolor="#EEEEEE", edgecolor="none", zorder=2))
    for sender, receiver in data.slow:
        axes.add_patch(
            Rectangle(
                (receiver - 0.44, sender - 0.44),
                0.88,
                0.88,
                fill=False,
                edgecolor=BAD,
                linewidth=1.4,
                zorder=4,
            )
        )
    if ranks <= MAX_WRITTEN:
        for (sender, receiver), value in np.ndenumerate(values):
            if np.isfinite(value):
                dark = norm(value) < 0.55 if data.quantity == "busbw" else norm(value) > 0.45
                color = "white" if dark else INK
                text = _short(float(value), float(np.nanmax(values)))
                axes.text(receiver, sender, text, ha="center", va="center", fontsize=5.5, color=color, zorder=5)
    _host_lines(data, axes)
    step = max(1, -(-ranks // 16))
    labels = [str(rank) for rank in range(0, ranks, step)]
    several = len(set(data.hosts)) > 1 and ranks <= MAX_WRITTEN and max(map(len, data.hosts)) <= 12
    axes.set_xticks(range(0, ranks, step), labels)
    axes.set_yticks(range(0, ranks, step), [f"{data.hosts[int(r)]} {r}" for r in labels] if several else labels)
    axes.tick_params(length=0)
    axes.set_xlabel("receiver (rank)")
    axes.set_ylabel("sender (host, rank)" if several else "sender (rank)")
    axes.set_title(data.title)
    for spine in axes.spines.values():
        spine.set_visible(False)
    bar = axes.figure.colorbar(image, ax=axes, shrink=0.85, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)
    if data.slow:
        axes.plot([], [], marker="s", markerfacecolor="none", markeredgecolor=BAD, linestyle="none", label="slow")
        axes.legend(loc="upper right", bbox_to_anchor=(1.0, -0.1), handletextpad=0.1)


def _host_lines(data: PairsChart, axes: Axes) -> None:
    """White lines where one host's ranks end and the next one's begin, when hosts have several."""
    hosts = data.hosts
    if not 1 < len(set(hosts)) < len(hosts):
        return
    for rank in range(1, len(hosts)):
        if hosts[rank] != hosts[rank - 1]:
            axes.axhline(rank - 0.5, color="white", linewidth=1.5, zorder=3)
            axes.axvline(rank - 0.5, color="white", linewidth=1.5, zorder=3)


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


def size_inches(data: PairsChart) -> tuple[float, float]:
    del data
    return COLUMN_INCHES, 2.85


CHART = Chart(
    key="pairs",
    title="Pairs of ranks",
    needs=("rows",),
    prepare=prepare,
    draw=draw,
    caption=caption,
    size_inches=size_inches,
)

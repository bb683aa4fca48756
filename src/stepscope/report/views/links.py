"""Links: expected and measured bandwidth, pairs of ranks and the slow ones, the link matrix of the machine."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from stepscope.core.dataclass import record
from stepscope.core.words import counted, grouped, ranges
from stepscope.machine.topology import LINK_KINDS, Device, Topology
from stepscope.records.comm import CommRow
from stepscope.records.environment import EnvironmentRecord
from stepscope.report.table import (
    ABOVE,
    UNKNOWN,
    Column,
    Raw,
    Table,
    Value,
    byte_size,
    gigabytes,
    group_column,
    identity_column,
    lead_column,
    microseconds,
    percent,
    tabled,
    times,
    unknown,
    whole,
    wording,
)
from stepscope.report.vega import COLORS, COLUMN, Chart, Spec, chart, layer, name_axis, sig, size_tick, unsaid
from stepscope.report.views import View
from stepscope.results.comm_facts import LinkRate, link_rates
from stepscope.results.labels import (
    LATENCY_BYTES,
    cells_of,
    comm_failure_label,
    comm_ranks_label,
    device_label,
    network_label,
)
from stepscope.results.slow_pairs import SLOW, PairsVerdict, SlowEnd, SlowPair, slow_pairs

LEAST, USUAL = 0.5, 0.7
"""Shares of the peak below which a link is red, and yellow: protocols and headers leave large messages 70 to 90% of it."""


def links_table(rows: Sequence[CommRow], environment: EnvironmentRecord | None, topology: Topology | None) -> Table:
    """Return the table: one row a pair of ranks, then one a collective."""
    rates = link_rates(rows, environment, topology)
    above = dict.fromkeys(rate.above for rate in rates if rate.above is not None)
    why = dict.fromkeys(rate.unknown for rate in rates if rate.unknown is not None)
    return tabled(
        "links",
        "Bandwidth of links, expected and measured",
        rates,
        lead_column("link", "ranks or collective", "name"),
        identity_column("world_size", "ranks", "world_size", whole),
        identity_column("path", "between them", "path"),
        Column("size_bytes", "at size", "size_bytes", byte_size, drop=1),
        lead_column("expected", "expected (GB/s)", _expected_value, gigabytes),
        Column("measured", "measured (GB/s)", "measured_bytes_per_s", gigabytes, short="measured"),
        Column("share", "share", _share_value, percent),
        footnotes=(
            "measured: best busbw over the sizes from 1 MiB on, one direction; expected: peak of the link in one direction,"
            " which protocols and headers leave 70 to 90% of.",
            *(f"{ABOVE}: faster than expected: {reason}." for reason in above),
            *(f"expected unknown: {reason}." for reason in why),
        ),
    )


def _expected_value(rate: LinkRate) -> Value:
    if rate.expected_bytes_per_s is None:
        return Value("unknown", None, tone="dim")
    return gigabytes(rate.expected_bytes_per_s)


def _share_value(rate: LinkRate) -> Value:
    if rate.above is not None:
        return Value(ABOVE, None, tone="dim")
    if rate.share is None:
        return unknown()
    return percent(rate.share, tone="bad" if rate.share < LEAST else "warn" if rate.share < USUAL else "good")


MAX_LISTED = 20


def slow_pairs_table(rows: Sequence[CommRow]) -> Table:
    """Return the table of slow ends (a rank or host with most of its pairs), then of slow pairs that no end explains.

    The worst come first. Without any: no rows and no footnotes.
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
        lines,
        identity_column("world_size", "world", "0", whole, drop=1),
        lead_column("pair", "pair", lambda line: _slow_name(line[1])),
        identity_column("size_bytes", "size", _of_pair(lambda pair: pair.size_bytes), byte_size),
        identity_column("path", "path", _of_pair(lambda pair: pair.path or None)),
        Column("time_ns", "best (us)", _of_pair(lambda pair: pair.time_ns), microseconds),
        Column("typical_ns", "usual (us)", _of_pair(lambda pair: pair.typical_ns), microseconds),
        Column("ratio", "slower", lambda line: _ratio_value(line[1]), times),
        Column("rate", "best (GB/s)", _of_pair(lambda pair: pair.size_bytes / pair.time_ns * 1e9), gigabytes, drop=2),
        Column("seen", "seen", lambda line: _seen_text(line[1])),
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


def _slow_name(slow: SlowEnd | SlowPair) -> str:
    """Write a pair, or an end with its ranks."""
    if isinstance(slow, SlowPair):
        sender, receiver = slow.peer
        return f"{sender} <-> {receiver}" if slow.bidirectional else f"{sender} -> {receiver}"
    ranks = ranges(slow.ranks)
    who = ranks if slow.host is None else f"{ranks} ({slow.host})"
    return {"egress": f"{who} -> any", "ingress": f"any -> {who}", "both": f"{who} <-> any"}[slow.direction]


def _ratio_value(slow: SlowEnd | SlowPair) -> Value:
    return times(slow.ratio, tone="warn" if isinstance(slow, SlowPair) and not slow.confirmed else "bad")


def _seen_text(slow: SlowEnd | SlowPair) -> str:
    if isinstance(slow, SlowPair):
        return "in several measurements" if slow.confirmed else "once"
    return f"in {slow.slow} of {slow.of} pairs"


def topology_table(topology: Topology) -> Table:
    """Return the table: one row a device, one column a GPU (its number alone, so that eight fit a narrow terminal)."""
    kinds = {link.kind for link in topology.links.values()}

    def cell(row: Device, gpu: Device) -> Value:
        if row is gpu:
            return wording("·", tone="dim")
        link = topology.link(row.name, gpu.name)
        if link is None:
            return wording("?", tone="bad")
        return wording(link.label, tone="good" if link.is_nvlink else "warn" if link.crosses_socket else "plain")

    def column(gpu: Device) -> Column:
        return Column(f"to_{gpu.name}", gpu.name.removeprefix("GPU"), lambda row: cell(row, gpu))

    return tabled(
        "topology",
        "Links of the machine",
        topology.devices,
        lead_column("device", "device", lambda row: row.label or row.name),
        *(column(gpu) for gpu in topology.gpus),
        footnotes=("; ".join(f"{kind}: {text}" for kind, text in LINK_KINDS.items() if kind in kinds),),
        notes=topology.problems,
    )


_SHOWN = {"busbw": (1e-9, "busbw", "GB/s"), "time": (1e-3, "time", "µs")}
"""Quantity of messages (of small ones the time) -> scale for people, name, unit."""

MAX_WRITTEN = 8
"""Up to this many ranks the figures stand in the cells."""

Figures = Mapping[tuple[int, int], float]
"""(sender, receiver) -> figure as people read it."""


def pairs_charts(rows: Sequence[CommRow]) -> Iterator[Chart]:
    """Yield one chart for each cell, size and direction of the ``pairs`` rows."""
    verdicts = {verdict.cell_id: verdict for verdict in slow_pairs(rows)}
    for number, (cell_id, cell) in enumerate(cells_of(rows, "pairs").items(), start=1):
        timed = (r for r in cell if r.peer is not None and r.size_bytes and r.busbw_bytes_per_s and r.time_ns_median)
        kinds = grouped(timed, lambda row: (row.size_bytes or 0, row.bidirectional))
        for kind, kind_rows in kinds.items():
            yield _pairs_chart(kind, kind_rows, verdicts[cell_id], number)


def _pairs_chart(kind: tuple[int, bool], rows: Sequence[CommRow], verdict: PairsVerdict, number: int) -> Chart:
    """Draw all pairs of one size as a matrix: latency, or bandwidth."""
    size, both = kind
    small = size <= LATENCY_BYTES
    scale, what, unit = _SHOWN["time" if small else "busbw"]
    figures = {
        row.peer: value * scale
        for row in rows
        if row.peer is not None and (value := row.time_ns_median if small else row.busbw_bytes_per_s) is not None
    }
    slow = {p.peer for p in verdict.pairs if (p.size_bytes, p.bidirectional) == kind}
    if both:  # measured once for the two of them
        figures |= {(b, a): value for (a, b), value in figures.items()}
        slow |= {(b, a) for a, b in slow}
    way = "both ways" if both else "one way"
    again = f"-{number}" if number > 1 else ""
    title = f"{size_tick(size)} {way}, {counted(verdict.world_size, 'rank')}, {device_label(rows[0])}"
    ordered = sorted(figures.values())
    if not verdict.compared:
        judged = "Too few pairs are alike to call one of them slow."
    elif not slow:
        judged = "No pair is slow against its like."
    else:
        ends = ", ".join(_end_name(end.host, end.ranks, end.direction) for end in verdict.ends)
        explained = f"; explained by {ends}" if ends else ""
        judged = f"Framed: {counted(len(slow), 'slow cell')} of {len(ordered)}{explained}."
    caption = (
        f"{what.capitalize() if small else what} of messages of {size_tick(size)} from each rank (down)"
        f" to each other (across), {way}{' at once' if both else ' at a time'}: {ordered[0]:.3g} to {ordered[-1]:.3g}"
        f" {unit}, median {statistics.median(ordered):.3g}. {judged}"
    )
    hosts = max((row.rank_hosts for row in rows), key=len)
    spec = _heat_map(title, verdict.world_size, hosts, figures, slow, f"{what} ({unit})", dark_is_small=not small)
    return Chart(f"{verdict.world_size}-ranks-{size}-{way.replace(' ', '-')}{again}", title, caption, spec)


def _end_name(host: str | None, ranks: Sequence[int], direction: str) -> str:
    who = f"rank {', '.join(map(str, ranks))}" if host is None else f"{host} (rank {', '.join(map(str, ranks))})"
    return f"{who} {'in and out' if direction == 'both' else 'out' if direction == 'egress' else 'in'}"


def _heat_map(
    title: str,
    ranks: int,
    hosts: Sequence[str],
    figures: Figures,
    slow: Collection[tuple[int, int]],
    label: str,
    *,
    dark_is_small: bool,
) -> Spec:
    """Draw a cell for each sender (down) and receiver (across); few ranks have the figures written in them."""
    several = len(set(hosts)) > 1 and ranks <= MAX_WRITTEN and max(map(len, hosts)) <= 12
    called = [f"{hosts[rank]} {rank}" if several else str(rank) for rank in range(ranks)]
    unit = label.partition("(")[2].rstrip(")")
    largest = max(figures.values())
    cells = [
        {
            "sender": called[sender],
            "receiver": str(receiver),
            "value": value,
            "text": _short_number(value, largest),
            "said": f"{called[sender]} to {receiver}: {value:.3g} {unit}" + ", slow" * ((sender, receiver) in slow),
        }
        for (sender, receiver), value in sorted(figures.items())
    ]
    hue = {
        "field": "value",
        "type": "quantitative",
        "scale": {"scheme": "cividis", "domain": [0, sig(largest)], "reverse": not dark_is_small},
        "legend": {"title": label, "orient": "right", "gradientLength": 120, "gradientThickness": 8, "tickCount": 4},
    }
    layers = [layer("rect", cells, color=hue)]
    if ranks <= MAX_WRITTEN:
        dark = f"datum.value / {sig(largest)} {'<' if dark_is_small else '>'} 0.5"
        ink = {"condition": {"test": dark, "value": "white"}, "value": "#1c2126"}
        layers.append(layer("text", unsaid(cells), text="text", color=ink, fontSize=5.5))
    framed = [{"sender": called[a], "receiver": str(b)} for a, b in sorted(slow)]
    if framed:
        layers.append(layer("rect", framed, color="transparent", stroke=COLORS[1], strokeWidth=1.6))
    every = max(1, -(-ranks // 16))
    down = name_axis("sender", called, "sender (host, rank)" if several else "sender (rank)", values=called[::every])
    numbers = [str(rank) for rank in range(ranks)]
    across = name_axis("receiver", numbers, "receiver (rank)", values=numbers[::every])
    for axis in (down, across):
        axis["scale"] = {"domain": axis["scale"]["domain"], "padding": 0.04 if ranks <= 32 else 0}
    return chart(title, *layers, width=COLUMN, height=150, x=across, y=down)


def _short_number(value: float, largest: float) -> str:
    """Write three digits at most, the same decimals in all cells."""
    places = 0 if largest >= 100 else 1 if largest >= 10 else 2 if largest >= 1 else 3
    return f"{value:.{places}f}"


MARK = "*"
MAX_MATRIX = 32
"""Wider matrices are not for eyes: the list of slow pairs and the heat map say it."""


def pairs_table(rows: Sequence[CommRow]) -> Table:
    """Return one matrix for each size and direction of the ``pairs`` rows, those of one cell after each other."""
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
            line
            for cell_id, cell in cells.items()
            if cell[0].world_size <= MAX_MATRIX
            for line in _pair_lines(cell, verdicts[cell_id])
        ),
        group_column("world", "ranks", lambda line: wording(line.world, line.cell[0].world_size)),
        group_column("size_bytes", "size", "size", unit="bytes"),
        group_column("direction", "direction", "direction"),
        group_column("quantity", "quantity", "quantity"),
        lead_column("sender", "from \\ to", "sent_by"),
        *(receiver(rank) for rank in range(width)),
        failure=lambda line: line.failure,
        notes=(
            *(f"the matrix of {counted(n, 'rank')} is left out: more than {MAX_MATRIX} columns" for n in wide),
            *dict.fromkeys(verdict.unavailable for verdict in verdicts.values() if verdict.unavailable),
        ),
    )
    return replace(table, footnotes=(_FOOTNOTE,) if cells else ())


@record
class _Line:
    """What one rank sends, at one size and direction; sender None: all pairs of a cell that failed."""

    cell: Sequence[CommRow]
    size_bytes: int | None = None
    both: bool = False
    sender: int | None = None
    by_peer: Mapping[tuple[int, int], CommRow]
    slow: frozenset[tuple[int, bool, tuple[int, int]]] = frozenset()
    failure: str | None = None

    @property
    def world(self) -> str:
        first = self.cell[0]
        ranks = f"{comm_ranks_label(first)}, {device_label(first)}"
        return f"{ranks}, {network_label(first)}" if first.network else ranks

    @property
    def size(self) -> Value:
        return wording(UNKNOWN) if self.size_bytes is None else byte_size(self.size_bytes)

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
            return wording("all pairs")
        hosts = max((row.rank_hosts for row in self.cell), key=len)
        several = self.sender < len(hosts) and len(set(hosts)) > 1
        return wording(f"{self.sender} {hosts[self.sender]}" if several else str(self.sender), self.sender)

    def value(self, receiver: int) -> Value:
        if self.sender is None or self.size_bytes is None:
            return unknown()
        peer = self.sender, receiver
        return _pair_value(self.by_peer, peer, both=self.both, slow=(self.size_bytes, self.both, peer) in self.slow)


def _pair_lines(cell: Sequence[CommRow], verdict: PairsVerdict) -> list[_Line]:
    """Return the lines of the table of pairs: a row for each sender."""
    slow = frozenset((p.size_bytes, p.bidirectional, p.peer) for p in verdict.pairs)
    kinds: dict[tuple[int, bool], dict[tuple[int, int], CommRow]] = {}
    for row in cell:
        if row.peer is not None and row.size_bytes is not None:
            kinds.setdefault((row.size_bytes, row.bidirectional), {})[row.peer] = row
    lines = [
        _Line(cell=cell, size_bytes=size, both=both, sender=sender, by_peer=kind, slow=slow)
        for (size, both), kind in kinds.items()
        for sender in range(cell[0].world_size)
    ]
    failed = next((row for row in cell if row.status != "ok" and row.peer is None), None)
    if failed is not None:
        lines.append(_Line(cell=cell, by_peer={}, failure=comm_failure_label(failed)))
    return lines


def _pair_value(by_peer: Mapping[tuple[int, int], CommRow], peer: tuple[int, int], *, both: bool, slow: bool) -> Value:
    """Write one pair's figure; dim where it is not measured."""
    if peer[0] == peer[1]:
        return Value("·", None, tone="dim")
    row = by_peer.get(peer)
    if row is None and both and (peer[1], peer[0]) in by_peer:
        return Value("", None)  # stands on the other side of the diagonal
    value = unknown() if row is None else _pair_quantity(row)
    if value.raw is None:
        return value
    return replace(value, text=f"{MARK}{value.text}", tone="bad") if slow else value


def _pair_quantity(row: CommRow) -> Value:
    """Return the pair's quantity; raw in ns or bytes/s."""
    if (row.size_bytes or 0) <= LATENCY_BYTES:
        return microseconds(row.time_ns_median)
    return gigabytes(row.busbw_bytes_per_s)


_FOOTNOTE = (
    "time: of the slower of the two ranks, median over the calls; busbw = size / time, both ways at once: per direction"
    f" (GB = 1e9 bytes). {MARK} slow: its best call took at least {SLOW:.2f}x as long as that of its like, and"
    " longer than their scatter explains."
)


VIEWS = (
    View("links", table=links_table),
    View("comm_slow_pairs", table=slow_pairs_table),
    View("topology", table=topology_table),
    View("pairs", "Pairs of ranks", table=pairs_table, charts=pairs_charts),
)

"""What NCCL said in its debug log: communicators, how their ranks are connected, what was chosen, what went wrong."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from stepscope.core.units import format_size
from stepscope.core.words import counted
from stepscope.records.nccl_debug import NcclChoice, NcclCommunicator, NcclDebug, NcclLink
from stepscope.report.tables._common import Column, Row, Table, TableKind, Value, unknown
from stepscope.report.tables._trace import rank_set, who, words

NICS_SHOWN = 8


def build(debug: NcclDebug) -> Table:
    """One row a communicator."""
    labels = _labels(debug)
    rows = [
        Row(
            values=(
                words(labels[i]),
                _ranks(each),
                _count(len({r.host for r in each.ranks}) or None),
                words(", ".join(each.versions) or None, tone="warn" if len(each.versions) > 1 else "plain"),
                words(", ".join(each.networks) or None),
                _count(len(each.rings) or None),
                _count(len(each.trees) or None),
                _count(each.coll_channels),
                _count(each.p2p_channels),
                _nvls(each),
                _state(each),
            )
        )
        for i, each in enumerate(debug.communicators)
    ]
    return Table(
        key="nccl_debug",
        title="NCCL communicators",
        columns=(
            _LABEL,
            Column(key="ranks", title="ranks"),
            Column(key="hosts", title="hosts"),
            Column(key="version", title="NCCL", align="left", drop=3),
            Column(key="network", title="network", align="left"),
            Column(key="rings", title="rings", drop=4),
            Column(key="trees", title="trees", drop=5),
            Column(key="coll_channels", title="channels", drop=2),
            Column(key="p2p_channels", title="p2p channels", short_title="p2p", drop=6),
            Column(key="nvls", title="NVLS", drop=1),
            Column(key="state", title="state", align="left"),
        ),
        rows=tuple(rows),
        footnotes=tuple(_surroundings(debug)),
        notes=debug.notes,
    )


TABLE = TableKind(key="nccl_debug", title="NCCL", needs=("nccl_debug",), build=build)


def build_links(debug: NcclDebug) -> Table:
    """One row per communicator and transport, links between hosts apart from those inside one."""
    labels = _labels(debug)
    rows = []
    for i, each in enumerate(debug.communicators):
        hosts = {r.rank: r.host for r in each.ranks}
        ways: dict[tuple[str, str, bool | None], list[NcclLink]] = defaultdict(list)
        for link in each.links:
            ways[link.transport, _where(link, hosts), link.gdrdma].append(link)
        for (transport, where, gdrdma), links in sorted(ways.items(), key=lambda w: (-len(w[1]), w[0][:2])):
            nics = sorted({n for link in links for n in (*link.send_nics, *link.receive_nics)})
            rows.append(
                Row(
                    values=(
                        words(labels[i]),
                        words(transport, tone="warn" if transport == "NET/Socket" else "plain"),
                        words(where),
                        _gpu_direct(gdrdma),
                        _count(len(links)),
                        _span([link.channels for link in links]),
                        words(rank_set(nics) or None),
                    )
                )
            )
    return Table(
        key="nccl_links",
        title="How the ranks are connected",
        columns=(
            _LABEL,
            Column(key="transport", title="transport", align="left", role="identity"),
            Column(key="where", title="between", align="left"),
            Column(key="gdrdma", title="GPU direct", align="left"),
            Column(key="links", title="links"),
            Column(key="channels", title="channels each", short_title="channels"),
            Column(key="nics", title="NICs", align="left", drop=1),
        ),
        rows=tuple(rows),
        footnotes=("a link: one direction between two ranks; GPU direct: the NIC reads and writes GPU memory",)
        if rows
        else (),
    )


def build_choices(debug: NcclDebug) -> Table:
    """One row per operation and range of sizes for which NCCL chose the same."""
    labels = _labels(debug)
    rows = [
        Row(
            values=(
                words(labels[i]),
                words(mine[0].op),
                words(format_size(mine[0].low_bytes), raw=mine[0].low_bytes),
                words(format_size(mine[-1].high_bytes), raw=mine[-1].high_bytes),
                words(mine[0].algorithm),
                words(mine[0].protocol),
                _channels(mine[0]),
                _count(sum(c.calls for c in mine)),
            )
        )
        for i, each in enumerate(debug.communicators)
        for mine in _alike(each.choices)
    ]
    return Table(
        key="nccl_choices",
        title="What NCCL chose",
        columns=(
            _LABEL,
            Column(key="op", title="operation", align="left", role="identity"),
            Column(key="low_bytes", title="from", unit="bytes", role="identity"),
            Column(key="high_bytes", title="to", unit="bytes", role="identity"),
            Column(key="algorithm", title="algorithm", align="left"),
            Column(key="protocol", title="protocol", align="left"),
            Column(key="channels", title="channels", align="left", drop=1),
            Column(key="calls", title="calls", drop=2),
        ),
        rows=tuple(rows),
        footnotes=("from, to: smallest and largest size seen with this choice",) if rows else (),
    )


def build_messages(debug: NcclDebug) -> Table:
    """Warnings, then errors on their way up; one row per place and process."""
    ordered = sorted(debug.messages, key=lambda m: (m.kind != "warning", m.rank is None, m.rank or 0))
    rows = [
        Row(
            values=(
                _count(m.rank),
                words(m.host),
                _count(m.pid),
                words(m.place),
                words(m.text, tone="bad" if m.kind == "warning" else "dim"),
                _count(m.count),
            )
        )
        for m in ordered
    ]
    return Table(
        key="nccl_messages",
        title="NCCL's warnings",
        columns=(
            Column(key="rank", title="rank", role="identity", lead=True),
            Column(key="host", title="host", align="left", role="identity"),
            Column(key="pid", title="pid", drop=1),
            Column(key="place", title="place", align="left", drop=2),
            Column(key="text", title="text", align="left"),
            Column(key="count", title="times"),
        ),
        rows=tuple(rows),
    )


def build_all(debug: NcclDebug) -> tuple[Table, ...]:
    """The tables that have something to show."""
    tables = (build(debug), build_links(debug), build_choices(debug), build_messages(debug))
    return tuple(t for t in tables if t.rows or t.notes or t.footnotes)


_LABEL = Column(key="communicator", title="communicator", align="left", role="identity", lead=True)


def _labels(debug: NcclDebug) -> list[str]:
    """NCCL's id; where it states none, a number."""
    return [
        each.id or (f"#{i}" if each.nranks is not None else "not stated") for i, each in enumerate(debug.communicators)
    ]


def _count(value: int | None) -> Value:
    return unknown() if value is None else Value(text=str(value), raw=value)


def _ranks(each: NcclCommunicator) -> Value:
    if each.nranks is None:
        return unknown()
    missing = len(each.missing_ranks)
    text = f"{len(each.ranks)} of {each.nranks}" if missing else str(each.nranks)
    return Value(text=text, raw=each.nranks, tone="warn" if missing else "plain")


def _nvls(each: NcclCommunicator) -> Value:
    if each.nvls_channels:
        return words(counted(each.nvls_channels, "channel"), raw=each.nvls_channels)
    if each.nvls is False or each.nvls_channels == 0:
        return words("no", raw=each.nvls_channels)
    return words("yes") if each.nvls else unknown()


def _state(each: NcclCommunicator) -> Value:
    waiting = [r.rank for r in each.ranks if not r.initialised]
    aborted = [r.rank for r in each.ranks if r.ended == "aborted"]
    if waiting:
        return words(f"init not complete on {who(waiting)}", tone="bad")
    if aborted:
        return words(f"aborted by {who(aborted)}", tone="bad")
    if not each.ranks:
        return unknown()
    closed = all(r.ended == "destroyed" for r in each.ranks)
    return words("opened and closed" if closed else "open", tone="dim")


def _where(link: NcclLink, hosts: dict[int, str]) -> str:
    here, there = hosts.get(link.source), hosts.get(link.destination)
    if here is None or there is None:
        return "not known"
    return "one host" if here == there else "hosts"


def _gpu_direct(gdrdma: bool | None) -> Value:
    if gdrdma is None:
        return unknown()
    return words("yes" if gdrdma else "no", tone="good" if gdrdma else "warn")


def _span(values: Sequence[int]) -> Value:
    low, high = min(values), max(values)
    return Value(text=str(low) if low == high else f"{low} to {high}", raw=high)


def _channels(choice: NcclChoice) -> Value:
    if choice.channels is None:
        return unknown()
    low, high = choice.channels
    return words(f"{low} to {high}", raw=high - low + 1)


def _alike(choices: Sequence[NcclChoice]) -> Iterator[list[NcclChoice]]:
    """Runs of neighbouring sizes of one operation with one choice; they come ordered by size."""
    run: list[NcclChoice] = []
    for choice in choices:
        if run and _chosen(run[-1]) != _chosen(choice):
            yield run
            run = []
        run.append(choice)
    if run:
        yield run


def _chosen(choice: NcclChoice) -> tuple[object, ...]:
    return choice.op, choice.algorithm, choice.protocol, choice.channels


def _surroundings(debug: NcclDebug) -> Iterator[str]:
    if debug.net_plugins:
        yield f"network plugin: {', '.join(debug.net_plugins)}"
    elif debug.no_plugin:
        yield f"no external network plugin: {debug.no_plugin[0]}"
    devices: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for host in debug.hosts:
        devices[host.nics].append(host.host)
    for nics, hosts in devices.items():
        if nics:
            more = f" and {len(nics) - NICS_SHOWN} more" if len(nics) > NICS_SHOWN else ""
            of = hosts[0] if len(hosts) == 1 else f"{counted(len(hosts), 'host')}, each"
            yield f"NICs of {of}: {', '.join(nics[:NICS_SHOWN])}{more}"
    if blind := sorted({n for host in debug.hosts for n in host.no_gdr_nics}):
        yield f"NICs that cannot reach GPU memory (GPU Direct RDMA disabled): {', '.join(blind[:NICS_SHOWN])}"
    if debug.settings:
        yield "set: " + ", ".join(f"{name}={value}" for name, value in debug.settings)

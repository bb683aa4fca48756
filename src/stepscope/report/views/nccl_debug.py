"""What NCCL said in its debug log: communicators, how their ranks are connected, what was chosen, what went wrong."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from stepscope.core.words import counted, grouped, ranges
from stepscope.records.nccl import NcclChoice, NcclCommunicator, NcclDebug, NcclLink
from stepscope.report.shared.traces import who
from stepscope.report.table import (
    Column,
    Table,
    Value,
    byte_size,
    identity_column,
    lead_column,
    tabled,
    unknown,
    whole,
    wording,
)
from stepscope.report.views import View

NICS_SHOWN = 8


def build(debug: NcclDebug) -> Table:
    """Return the table: one row a communicator."""
    labels = _communicator_labels(debug)
    return replace(
        tabled(
            "nccl_debug",
            "NCCL communicators",
            enumerate(debug.communicators),
            lead_column("communicator", "communicator", lambda c: labels[c[0]]),
            Column("ranks", "ranks", lambda c: _ranks_value(c[1]), whole),
            Column("hosts", "hosts", lambda c: len({r.host for r in c[1].ranks}) or None, whole),
            Column("version", "NCCL", lambda c: _versions_value(c[1]), drop=5),
            Column("network", "network", lambda c: ", ".join(c[1].networks) or None),
            Column("rings", "rings", lambda c: len(c[1].rings) or None, whole, drop=3),
            Column("trees", "trees", lambda c: len(c[1].trees) or None, whole, drop=2),
            Column("coll_channels", "channels", "1.coll_channels", whole, drop=6),
            Column("p2p_channels", "p2p channels", "1.p2p_channels", whole, short="p2p", drop=4),
            Column("nvls", "NVLS", lambda c: _nvls_value(c[1]), whole, drop=1),
            Column("state", "state", lambda c: _state_value(c[1])),
        ),
        footnotes=tuple(_surroundings_notes(debug)),
    )


def build_links(debug: NcclDebug) -> Table:
    """Return the table: one row per communicator and transport, links between hosts apart from those inside one."""
    labels = _communicator_labels(debug)
    items: list[tuple[str, str, str, list[NcclLink]]] = []
    for i, communicator in enumerate(debug.communicators):
        ordered = sorted(_links_by_way(communicator).items(), key=lambda way: (-len(way[1]), way[0][:2]))
        items += [(labels[i], transport, where, links) for (transport, where, _), links in ordered]

    def nics(item: tuple[str, str, str, list[NcclLink]]) -> str | None:
        return ranges({n for link in item[3] for n in (*link.send_nics, *link.receive_nics)}) or None

    return tabled(
        "nccl_links",
        "How the ranks are connected",
        items,
        lead_column("communicator", "communicator", "0"),
        identity_column(
            "transport",
            "transport",
            lambda item: wording(item[1], tone="warn" if item[1] == "NET/Socket" else "plain"),
        ),
        Column("where", "between", "2"),
        Column("gdrdma", "GPU direct", lambda item: _gpu_direct(item[3][0].gdrdma)),
        Column("links", "links", lambda item: len(item[3]), whole),
        Column("channels", "channels each", lambda i: _span_value([k.channels for k in i[3]]), whole, short="channels"),
        Column("nics", "NICs", nics, drop=1),
        footnotes=("a link: one direction between two ranks; GPU direct: the NIC reads and writes GPU memory",),
    )


def build_choices(debug: NcclDebug) -> Table:
    """Return the table: one row per operation and range of sizes for which NCCL chose the same."""
    labels = _communicator_labels(debug)
    items = [
        (labels[i], alike)
        for i, communicator in enumerate(debug.communicators)
        for alike in _choices_alike(communicator.choices)
    ]
    return tabled(
        "nccl_choices",
        "What NCCL chose",
        items,
        lead_column("communicator", "communicator", "0"),
        identity_column("op", "operation", "1.0.op"),
        identity_column("low_bytes", "from", "1.0.low_bytes", byte_size),
        identity_column("high_bytes", "to", lambda item: item[1][-1].high_bytes, byte_size),
        Column("algorithm", "algorithm", "1.0.algorithm"),
        Column("protocol", "protocol", "1.0.protocol"),
        Column("channels", "channels", lambda item: _channels_value(item[1][0]), drop=1),
        Column("calls", "calls", lambda item: sum(c.calls for c in item[1]), whole, drop=2),
        footnotes=("from, to: smallest and largest size seen with this choice",),
    )


def build_messages(debug: NcclDebug) -> Table:
    """Return the table of warnings, then of errors on their way up; one row per place and process."""
    return tabled(
        "nccl_messages",
        "NCCL's warnings",
        sorted(debug.messages, key=lambda m: (m.kind != "warning", m.rank is None, m.rank or 0)),
        lead_column("rank", "rank", "rank", whole),
        identity_column("host", "host", "host"),
        Column("pid", "pid", "pid", whole, drop=1),
        Column("place", "place", "place", drop=2),
        Column("text", "text", lambda m: wording(m.text, tone="bad" if m.kind == "warning" else "dim")),
        Column("count", "times", "count", whole),
    )


def build_all(debug: NcclDebug) -> tuple[Table, ...]:
    """Return the tables that have something to show."""
    tables = (build(debug), build_links(debug), build_choices(debug), build_messages(debug))
    return tuple(t for t in tables if t.rows)


def _communicator_labels(debug: NcclDebug) -> list[str]:
    """Return NCCL's id of each communicator; where it states none, a number."""
    return [
        communicator.id or (f"#{i}" if communicator.nranks is not None else "not stated")
        for i, communicator in enumerate(debug.communicators)
    ]


def _versions_value(communicator: NcclCommunicator) -> Value:
    return wording(", ".join(communicator.versions) or None, tone="warn" if len(communicator.versions) > 1 else "plain")


def _ranks_value(communicator: NcclCommunicator) -> Value:
    if communicator.nranks is None:
        return unknown()
    missing = len(communicator.missing_ranks)
    text = f"{len(communicator.ranks)} of {communicator.nranks}" if missing else str(communicator.nranks)
    return Value(text, communicator.nranks, tone="warn" if missing else "plain")


def _nvls_value(communicator: NcclCommunicator) -> Value:
    if communicator.nvls_channels:
        return wording(counted(communicator.nvls_channels, "channel"), communicator.nvls_channels)
    if communicator.nvls is False or communicator.nvls_channels == 0:
        return Value("no", communicator.nvls_channels)
    return wording("yes") if communicator.nvls else unknown()


def _state_value(communicator: NcclCommunicator) -> Value:
    """Write whether all ranks are initialised, wait, or aborted."""
    waiting = [r.rank for r in communicator.ranks if not r.initialised]
    aborted = [r.rank for r in communicator.ranks if r.ended == "aborted"]
    if waiting:
        return wording(f"init not complete on {who(waiting)}", tone="bad")
    if aborted:
        return wording(f"aborted by {who(aborted)}", tone="bad")
    if not communicator.ranks:
        return unknown()
    closed = all(r.ended == "destroyed" for r in communicator.ranks)
    return wording("opened and closed" if closed else "open", tone="dim")


def _links_by_way(communicator: NcclCommunicator) -> dict[tuple[str, str, bool | None], list[NcclLink]]:
    """Group links by transport, what they connect, and whether the NIC reaches GPU memory."""
    hosts = {r.rank: r.host for r in communicator.ranks}
    return grouped(communicator.links, lambda link: (link.transport, _where_text(link, hosts), link.gdrdma))


def _where_text(link: NcclLink, hosts: dict[int, str]) -> str:
    here, there = hosts.get(link.source), hosts.get(link.destination)
    if here is None or there is None:
        return "unknown"
    return "one host" if here == there else "hosts"


def _gpu_direct(gdrdma: bool | None) -> Value:
    if gdrdma is None:
        return unknown()
    return wording("yes" if gdrdma else "no", tone="good" if gdrdma else "warn")


def _span_value(values: Sequence[int]) -> Value:
    low, high = min(values), max(values)
    return Value(str(low) if low == high else f"{low} to {high}", high)


def _channels_value(choice: NcclChoice) -> Value:
    if choice.channels is None:
        return unknown()
    low, high = choice.channels
    return wording(f"{low} to {high}", high - low + 1)


def _choices_alike(choices: Sequence[NcclChoice]) -> Iterator[list[NcclChoice]]:
    """Group neighbouring sizes of one operation with one choice; they come ordered by size."""
    run: list[NcclChoice] = []
    for choice in choices:
        if run and _choice_key(run[-1]) != _choice_key(choice):
            yield run
            run = []
        run.append(choice)
    if run:
        yield run


def _choice_key(choice: NcclChoice) -> tuple[object, ...]:
    return choice.op, choice.algorithm, choice.protocol, choice.channels


def _surroundings_notes(debug: NcclDebug) -> Iterator[str]:
    """Yield network plugin, settings and what the log lacks."""
    if debug.net_plugins:
        yield f"network plugin: {', '.join(debug.net_plugins)}"
    elif debug.no_plugin:
        yield f"no external network plugin: {debug.no_plugin[0]}"
    for nics, hosts in grouped(debug.hosts, lambda host: host.nics).items():
        if nics:
            more = f" and {len(nics) - NICS_SHOWN} more" if len(nics) > NICS_SHOWN else ""
            of = hosts[0].host if len(hosts) == 1 else f"{counted(len(hosts), 'host')}, each"
            yield f"NICs of {of}: {', '.join(nics[:NICS_SHOWN])}{more}"
    if blind := sorted({n for host in debug.hosts for n in host.no_gdr_nics}):
        yield f"NICs that cannot reach GPU memory (GPU Direct RDMA disabled): {', '.join(blind[:NICS_SHOWN])}"
    if debug.settings:
        yield "set: " + ", ".join(f"{name}={value}" for name, value in debug.settings)


VIEWS = (View("nccl_debug", tables=build_all),)

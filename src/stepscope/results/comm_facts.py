"""Measured collectives as rules look at them: sweeps, what they are called, and the shares and ranks in sentences."""

from __future__ import annotations

from collections.abc import Iterable

from stepscope.core.errors import Unavailable
from stepscope.machine.topology import Topology, parse_topology
from stepscope.records.comm import CommRow
from stepscope.records.nccl import NcclCommunicator, NcclLink
from stepscope.results.comm_labels import op_label, sweep_names, sweeps
from stepscope.results.evidence import Evidence

LARGE_BYTES = 1 << 20
"""From this size on a call is more transfer than start-up on links up to 10 GB/s and start-ups up to 100 us."""


def measured(rows: Iterable[CommRow]) -> list[CommRow]:
    """Rows of collectives that have a time and were not found wrong, of more than one rank."""
    return [
        row
        for row in rows
        if row.kind == "collective"
        and row.status == "ok"
        and row.correct is not False
        and row.world_size > 1
        and row.time_ns
        and row.size_bytes
    ]


def by_sweep(rows: Iterable[CommRow]) -> list[tuple[str, list[CommRow]]]:
    """(name, rows by size) of every sweep: ``all_reduce on 8 ranks, in place``."""
    shown = measured(rows)
    called = sweep_names(shown)
    return [
        (f"{op_label(sweep[0])} on {called(sweep[0])}", sorted(sweep, key=size_of)) for sweep in sweeps(shown).values()
    ]


def size_of(row: CommRow) -> int:
    """Bytes of a measured row."""
    return row.size_bytes or 0


def time_of(row: CommRow) -> float:
    """Time of a measured row, ns."""
    return row.time_ns or 0.0


def interval_share(row: CommRow) -> float | None:
    """Larger side of the 95% interval of the median / median; None: the samples give no interval."""
    middle, low, high = row.time_ns_median, row.time_ns_low, row.time_ns_high
    if middle is None or low is None or high is None or middle <= 0:
        return None
    return max(high - middle, middle - low) / middle


def shared_memory_links(communicator: NcclCommunicator) -> tuple[NcclLink, ...]:
    """Links between ranks of one host that NCCL takes through host memory."""
    host = {rank.rank: rank.host for rank in communicator.ranks}
    return tuple(
        link
        for link in communicator.links
        if link.transport.startswith("SHM") and host.get(link.source) == host.get(link.destination) is not None
    )


def topology_of(evidence: Evidence) -> Topology | None:
    """The link matrix: given, or recorded with the environment; None: neither."""
    if evidence.topology is not None:
        return evidence.topology
    text = None if evidence.environment is None else evidence.environment.topology
    found = None if text is None else parse_topology(text)
    return None if isinstance(found, Unavailable) else found

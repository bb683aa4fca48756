"""Measured collectives: sweeps and their names, the fastest settings of a size, and each link's rate beside its peak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.core.words import grouped
from stepscope.machine.peaks import find
from stepscope.machine.peaks.rates import pcie_bytes_per_s
from stepscope.machine.topology import Topology, parse_topology
from stepscope.records.comm import CommRow
from stepscope.records.environment import EnvironmentRecord
from stepscope.records.nccl import NcclCommunicator, NcclLink
from stepscope.results.evidence import Evidence
from stepscope.results.labels import cells_of, network_label, op_label, sweep_names, sweeps

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
    """Return (name, rows by size) of every sweep: ``all_reduce on 8 ranks, in place``."""
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
    """Links through host memory: NCCL connects ranks of one host alone so."""
    return tuple(link for link in communicator.links if link.transport.startswith(("SHM", "direct shared memory")))


def topology_of(evidence: Evidence) -> Topology | None:
    """The link matrix: given, or recorded with the environment; None: neither."""
    if evidence.topology is not None:
        return evidence.topology
    text = None if evidence.environment is None else evidence.environment.topology
    topology = None if text is None else parse_topology(text)
    return None if isinstance(topology, Unavailable) else topology


def link_peak(
    environment: EnvironmentRecord, *, device: str, hosts: int, network_bits_per_s: float | None = None
) -> float | None:
    """Peak of the link that all ranks share, bytes/s per direction: the emulated network's, or the GPUs' own on one host.
    None: not known.

    Over real hosts it is the NIC that ranks use, which no probe tells for certain; loopback has no peak at all.
    """
    if network_bits_per_s is not None:
        return network_bits_per_s / 8
    if device != "cuda" or hosts != 1 or environment.torch is None:
        return None
    names = set(environment.torch.device_names)
    if len(names) != 1:
        return None
    entry = find(names.pop())
    if isinstance(entry, Unavailable) or entry.link is None or entry.link.optional:
        return None
    return entry.link.bytes_per_s


@record
class Winner:
    """The fastest settings at one size.

    settings: rows of all settings measured there, fastest first. tied: how many of them are not told apart from the
    fastest, itself included: their 95% intervals of the median overlap, or one has none. default: the row without
    settings, None: the sweep has none or it gave no result. over_default, over_next: their time / the fastest's.
    """

    settings: tuple[CommRow, ...]
    tied: int
    default: CommRow | None
    over_default: float | None
    over_next: float

    @property
    def row(self) -> CommRow:
        return self.settings[0]

    @property
    def clear(self) -> bool:
        return self.tied == 1


def winners(rows: Sequence[CommRow]) -> tuple[Winner, ...]:
    """Return a winner for each size at which at least two settings of the environment were measured, in the order of
    sizes."""
    measured = [r for r in rows if r.kind == "collective" and r.status == "ok" and r.time_ns_median is not None]
    alike = grouped((row for sweep in sweeps(measured).values() for row in sweep), _same_but_env)
    return tuple(
        _fastest_settings(group) for group in alike.values() if len({tuple(sorted(r.env.items())) for r in group}) > 1
    )


def _same_but_env(row: CommRow) -> tuple[object, ...]:
    return (
        row.op, row.pattern, row.dtype, row.reduce_op, row.in_place, row.mode, row.in_flight, row.pacing, row.root,
        row.world_size, row.hosts, row.device, row.backend, row.network, row.size_bytes,
    )  # fmt: skip


def _fastest_settings(group: Sequence[CommRow]) -> Winner:
    """Return the fastest settings of a group, how many are as fast, and the ratio to the default and to the next."""
    ordered = sorted(group, key=_median_ns)
    best = ordered[0]
    default = next((row for row in ordered if not row.env), None)
    return Winner(
        settings=tuple(ordered),
        tied=1 + sum(not _intervals_apart(best, row) for row in ordered[1:]),
        default=default,
        over_default=None if default is None else _median_ns(default) / _median_ns(best),
        over_next=_median_ns(ordered[1]) / _median_ns(best),
    )


def _median_ns(row: CommRow) -> float:
    assert row.time_ns_median is not None, "only measured rows are compared"
    return row.time_ns_median


def _intervals_apart(fast: CommRow, slow: CommRow) -> bool:
    """Whether the intervals of two medians do not overlap (stricter than a test); False where one is missing."""
    return fast.time_ns_high is not None and slow.time_ns_low is not None and fast.time_ns_high < slow.time_ns_low


LOOPBACK = "ranks of one host on the CPU exchange data in its memory, which has no rated bandwidth"
NIC = "between hosts it is the NIC that the ranks use, which no probe reports"


@record
class LinkRate:
    """One link, or all links under one collective. Rates are of one direction, bytes/s.

    ranks: sender and receiver; None: a collective on all ``world_size`` ranks. path: what lies between them. expected: peak
    of the link; None: ``unknown`` says why. measured: busbw of :func:`best_size`, at ``size_bytes``. above: why it is more
    than the peak; None: it is not.
    """

    name: str
    world_size: int
    ranks: tuple[int, int] | None
    path: str
    expected_bytes_per_s: float | None
    unknown: str | None
    measured_bytes_per_s: float
    size_bytes: int
    above: str | None = None

    @property
    def share(self) -> float | None:
        """Measured / expected, at most 1; None: the peak is unknown, or it is not that of what was measured (``above``)."""
        if self.expected_bytes_per_s is None or self.above is not None:
            return None
        return self.measured_bytes_per_s / self.expected_bytes_per_s


def link_rates(
    rows: Sequence[CommRow], environment: EnvironmentRecord | None, topology: Topology | None
) -> tuple[LinkRate, ...]:
    """Return the rates of links: pairs of ranks first, then collectives, where a peak is known or pairs were measured."""
    pairs = tuple(
        rate
        for cell in cells_of(rows, "pairs").values()
        for rate in _pair_link_rates([row for row in cell if not row.bidirectional], environment, topology)
    )
    collectives = [
        _sweep_link_rate(sweep) for sweep in sweeps(row for row in rows if row.kind == "collective").values()
    ]
    rated = [rate for rate in collectives if rate is not None and (pairs or rate.expected_bytes_per_s is not None)]
    return (*pairs, *rated)


def _pair_link_rates(
    rows: Sequence[CommRow], environment: EnvironmentRecord | None, topology: Topology | None
) -> Iterator[LinkRate]:
    """Yield the best rate of each pair of ranks, beside the peak of what lies between them where that is known."""
    for peer, pair_rows in grouped((row for row in rows if row.peer is not None), lambda row: row.peer).items():
        best = best_size(pair_rows)
        if best is None or peer is None or best.busbw_bytes_per_s is None:
            continue
        path, peak = _path_and_peak(best, peer, environment, topology)
        expected = None if isinstance(peak, str) else peak
        yield LinkRate(
            name=f"{peer[0]} -> {peer[1]}",
            world_size=best.world_size,
            ranks=peer,
            path=path,
            expected_bytes_per_s=expected,
            unknown=peak if isinstance(peak, str) else None,
            measured_bytes_per_s=best.busbw_bytes_per_s,
            size_bytes=best.size_bytes or 0,
            above=above_peak(best, expected),
        )


def _sweep_link_rate(sweep: Sequence[CommRow]) -> LinkRate | None:
    """Return the best rate of a sweep, beside the peak of its link; None where no size of two ranks or more was measured."""
    best = best_size(sweep)
    if best is None or best.world_size < 2 or best.busbw_bytes_per_s is None:
        return None
    peak = best.link_peak_bytes_per_s
    one_host = (best.hosts or 1) == 1
    return LinkRate(
        name=op_label(best),
        world_size=best.world_size,
        ranks=None,
        path=network_label(best) if best.network else "one host" if one_host else f"{best.hosts} hosts",
        expected_bytes_per_s=peak,
        unknown=None if peak is not None else _why_no_peak(best, one_host=one_host),
        measured_bytes_per_s=best.busbw_bytes_per_s,
        size_bytes=best.size_bytes or 0,
        above=above_peak(best, peak),
    )


def best_size(rows: Sequence[CommRow]) -> CommRow | None:
    """The size of a sweep with the best busbw, of those from 1 MiB on where there are any: a small message says more of
    start-up and bursts."""
    rated = [
        row for row in rows if row.status == "ok" and row.busbw_bytes_per_s is not None and row.correct is not False
    ]
    large = [row for row in rated if (row.size_bytes or 0) >= LARGE_BYTES]
    return max(large or rated, key=lambda row: row.busbw_bytes_per_s or 0.0, default=None)


def above_peak(row: CommRow, peak: float | None) -> str | None:
    """Why the busbw of ``row`` exceeds ``peak``, bytes/s, and so is no share of it; None: it does not, or is not known."""
    if peak is None or (row.busbw_bytes_per_s or 0.0) <= peak:
        return None
    return why_above(row)


def why_above(row: CommRow) -> str:
    """What makes a collective faster than the peak of its link."""
    if row.network is not None:
        within = "" if row.hosts == row.world_size else ", and ranks of one host do not use it"
        return f"an emulated link lets a burst pass faster than its rate{within}"
    if row.backend == "nccl":
        return "the network reduces (NVLS, SHARP) and sends less than busbw counts, or the stated peak is wrong"
    return "the stated peak is wrong"


def _path_and_peak(
    row: CommRow, peer: tuple[int, int], environment: EnvironmentRecord | None, topology: Topology | None
) -> tuple[str, float | str]:
    """Return what lies between two ranks, and its peak, bytes/s, or why that is unknown."""
    hosts = row.rank_hosts
    one_host = len(hosts) <= max(peer) or hosts[peer[0]] == hosts[peer[1]]
    if row.network is not None and (not one_host or (row.hosts or 1) == row.world_size):
        return network_label(row), row.link_peak_bytes_per_s or "the emulated rate was not recorded"
    if not one_host:
        return "between hosts", NIC
    if row.device != "cuda":
        return "one host", LOOPBACK
    link = None if topology is None else topology.link(f"GPU{peer[0]}", f"GPU{peer[1]}")
    return "one host" if link is None else link.label, _gpu_peak(environment, topology, peer)


def _gpu_peak(environment: EnvironmentRecord | None, topology: Topology | None, peer: tuple[int, int]) -> float | str:
    """Return the peak, bytes/s, between two GPUs of one host, rank n on GPU n: of their NVLinks, or of the narrower PCIe
    link; or why it is unknown."""
    if environment is None or environment.torch is None or len(set(environment.torch.device_names)) != 1:
        return "the GPUs are unknown, or of several models"
    link = None if topology is None else topology.link(f"GPU{peer[0]}", f"GPU{peer[1]}")
    if link is not None and not link.is_nvlink:
        gpus = [gpu for gpu in environment.gpus if gpu.index in peer]
        rates = [pcie_bytes_per_s(gpu.pcie_generation_max or 0, gpu.pcie_width or 0) for gpu in gpus]
        recorded = [rate for rate in rates if not isinstance(rate, Unavailable)]
        return min(recorded) if len(recorded) == len(rates) == 2 else "the PCIe generation or width of a GPU is unknown"
    entry = find(environment.torch.device_names[0])
    if isinstance(entry, Unavailable):
        return entry.reason
    if entry.link is None:
        return f"{entry.name} has no link between GPUs, and the link matrix is unknown"
    if link is not None:
        return link.nvlinks * entry.link.each_bytes_per_s
    return "whether its bridge is there is unknown" if entry.link.optional else entry.link.peer_bytes_per_s


def _why_no_peak(row: CommRow, *, one_host: bool) -> str:
    if not one_host:
        return NIC
    return LOOPBACK if row.device == "cpu" else "the link of these GPUs is unknown"

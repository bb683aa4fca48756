"""What each link carries beside what it should carry: pairs of ranks, and the best of every collective."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import Unavailable
from stepscope.core.words import grouped
from stepscope.machine.peaks import find
from stepscope.machine.peaks.links import pcie_bytes_per_s
from stepscope.machine.topology import Topology
from stepscope.records.comm import CommRow
from stepscope.records.environment import EnvironmentRecord
from stepscope.results.comm_facts import LARGE_BYTES
from stepscope.results.comm_labels import cells_of, network_label, op_label, sweeps

LOOPBACK = "ranks of one host on the CPU exchange data in its memory, which has no rated bandwidth"
NIC = "between hosts it is the NIC that the ranks use, which no probe reports"


@dataclass(frozen=True, slots=True, kw_only=True)
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
    """Pairs of ranks first, then collectives, where a peak is known or pairs were measured."""
    pairs = tuple(
        rate
        for cell in cells_of(rows, "pairs").values()
        for rate in _of_pairs([row for row in cell if not row.bidirectional], environment, topology)
    )
    collectives = [_of_sweep(sweep) for sweep in sweeps(row for row in rows if row.kind == "collective").values()]
    known = [rate for rate in collectives if rate is not None and (pairs or rate.expected_bytes_per_s is not None)]
    return (*pairs, *known)


def _of_pairs(
    rows: Sequence[CommRow], environment: EnvironmentRecord | None, topology: Topology | None
) -> Iterator[LinkRate]:
    for peer, mine in grouped((row for row in rows if row.peer is not None), lambda row: row.peer).items():
        best = best_size(mine)
        if best is None or peer is None or best.busbw_bytes_per_s is None:
            continue
        path, found = _between(best, peer, environment, topology)
        expected = None if isinstance(found, str) else found
        yield LinkRate(
            name=f"{peer[0]} -> {peer[1]}",
            world_size=best.world_size,
            ranks=peer,
            path=path,
            expected_bytes_per_s=expected,
            unknown=found if isinstance(found, str) else None,
            measured_bytes_per_s=best.busbw_bytes_per_s,
            size_bytes=best.size_bytes or 0,
            above=above_peak(best, expected),
        )


def _of_sweep(sweep: Sequence[CommRow]) -> LinkRate | None:
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
        unknown=None if peak is not None else _why(best, one_host=one_host),
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


def _between(
    row: CommRow, peer: tuple[int, int], environment: EnvironmentRecord | None, topology: Topology | None
) -> tuple[str, float | str]:
    """(what lies between two ranks, its peak or why that is unknown)."""
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
    """Between two GPUs of one host, rank n on GPU n: their NVLinks, or PCIe of the narrower one."""
    if environment is None or environment.torch is None or len(set(environment.torch.device_names)) != 1:
        return "the GPUs are unknown, or of several models"
    link = None if topology is None else topology.link(f"GPU{peer[0]}", f"GPU{peer[1]}")
    if link is not None and not link.is_nvlink:
        gpus = [gpu for gpu in environment.gpus if gpu.index in peer]
        rates = [pcie_bytes_per_s(gpu.pcie_generation_max or 0, gpu.pcie_width or 0) for gpu in gpus]
        known = [rate for rate in rates if not isinstance(rate, Unavailable)]
        return min(known) if len(known) == len(rates) == 2 else "the PCIe generation or width of a GPU is unknown"
    found = find(environment.torch.device_names[0])
    if isinstance(found, Unavailable):
        return found.reason
    if found.link is None:
        return f"{found.name} has no link between GPUs, and the link matrix is unknown"
    if link is not None:
        return link.nvlinks * found.link.each_bytes_per_s
    return "whether its bridge is there is unknown" if found.link.optional else found.link.peer_bytes_per_s


def _why(row: CommRow, *, one_host: bool) -> str:
    if not one_host:
        return NIC
    return LOOPBACK if row.device == "cpu" else "the link of these GPUs is unknown"

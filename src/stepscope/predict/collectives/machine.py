"""From GPU, counts and network to the rates and latencies that an algorithm's cost is made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from stepscope.core.errors import Unavailable, UsageError
from stepscope.machine.peaks import Accelerator
from stepscope.machine.peaks.links import pcie_bytes_per_s
from stepscope.predict.collectives import constants
from stepscope.predict.collectives.constants import GENERATIONS, MESHES, Generation
from stepscope.predict.collectives.fabrics import Fabric

GB = 1e9
Caller = Literal["nccl-tests", "torch"]

_RACK = {"gb200": 72, "gb300": 72}
_WITHOUT_SWITCH = ("gh200",)
_NODE = {"gh200": 4, "gb200": 4, "gb300": 4}
_USUAL_ADAPTER_GBIT = {"volta": 100.0, "ampere": 200.0, "hopper": 400.0, "blackwell": 400.0}
_USUAL_ADAPTER_BY_GPU = {"b300": 800.0, "gb300": 800.0, "mi100": 200.0, "mi210": 200.0, "mi250": 200.0}
_NO_PEER_ACCESS = ("rtx-40", "rtx-50", "rtx-30", "rtx-20")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the ranks sit and what lies between them. Rates in GB/s (1e9), one direction.

    domain_ranks: ranks that reach each other without the network (a node, or an NVLink rack); domains: how many of those.
    ring: what rings inside a domain carry on the wire of one GPU; pair: one GPU to one other; spread: one GPU to all.
    switch_peak: link peak where the switch can reduce, else None. node_net: a domain's adapters together, share reached
    included; gpu_net: one GPU's part of it. net_latency_us: of the fabric, above the library's.
    known: the fabric and link figures are published. notes: what was assumed.
    """

    gpu: Accelerator
    library: Literal["nccl", "rccl"]
    generation: Generation
    ranks: int
    domain_ranks: float
    domains: int
    over_pcie: bool
    ring: float
    pair: float
    spread: float
    switch_peak: float | None
    all_pairs: bool
    fabric: Fabric | None
    node_net: float
    gpu_net: float
    net_latency_us: float
    sharp: bool
    caller: Caller
    known: bool
    notes: tuple[str, ...]

    @property
    def scale(self) -> int:
        """Column of NCCL's tables: 0 one node, 1 two, 2 more."""
        return min(self.domains, 3) - 1


def place(
    gpu: Accelerator,
    *,
    n_gpus: int,
    gpus_per_node: int | None,
    fabric: Fabric | None,
    adapters_per_node: int | None,
    sharp: bool,
    caller: Caller,
) -> Place:
    """Raises UsageError for counts that cannot be."""
    if n_gpus < 1:
        raise UsageError(f"{n_gpus} GPUs cannot hold a collective", fix="give 2 or more")
    if gpus_per_node is not None and gpus_per_node < 1:
        raise UsageError(f"{gpus_per_node} GPUs per node", fix="give 1 or more")
    notes: list[str] = []
    generation = GENERATIONS[generation_of(gpu)]
    node = gpus_per_node or _usual_node(gpu, n_gpus, notes)
    domain = max(node, _RACK.get(gpu.key, 0))
    domains = math.ceil(n_gpus / domain)
    domain_ranks = n_gpus / domains
    if domains > 1 and domain > node:
        notes.append(f"NVLink reaches {domain} GPUs of a rack, {node} a tray")
    known = True
    ring, pair, spread, over_pcie, links_known = _inside(gpu, generation, n_gpus, domain_ranks, domains, notes)
    known = known and links_known
    switched = (
        gpu.vendor == "NVIDIA"
        and generation.nvls_rate > 0
        and not over_pcie
        and not gpu.key.startswith(_WITHOUT_SWITCH)
    )
    net, latency, fabric_known = 0.0, 0.0, True
    if domains > 1:
        net, latency, fabric_known = _between(gpu, generation, domain, node, fabric, adapters_per_node, notes)
    return Place(
        gpu=gpu,
        library="nccl" if gpu.vendor == "NVIDIA" else "rccl",
        generation=generation,
        ranks=n_gpus,
        domain_ranks=domain_ranks,
        domains=domains,
        over_pcie=over_pcie,
        ring=ring,
        pair=pair,
        spread=spread,
        switch_peak=gpu.link.bytes_per_s / GB if switched and gpu.link else None,
        all_pairs=gpu.key in MESHES and MESHES[gpu.key].all_pairs and n_gpus == 8 and domains == 1,
        fabric=fabric if domains > 1 else None,
        node_net=net,
        gpu_net=net / domain_ranks,
        net_latency_us=latency,
        sharp=sharp,
        caller=caller,
        known=known and fabric_known,
        notes=tuple(notes),
    )


def generation_of(gpu: Accelerator) -> str:
    """Row of NCCL's tables: volta (and older), ampere (Ada too), hopper or blackwell. AMD devices: ampere, unused."""
    if gpu.key.startswith(("b200", "b300", "gb200", "gb300", "rtx-50", "rtx-pro-6000")):
        return "blackwell"
    if gpu.key.startswith(("h100", "h800", "h200", "h20", "gh200")):
        return "hopper"
    if gpu.key.startswith(("p100", "v100", "t4", "rtx-20", "titan", "quadro")):
        return "volta"
    return "ampere"


def _usual_node(gpu: Accelerator, n_gpus: int, notes: list[str]) -> int:
    usual = next((count for key, count in _NODE.items() if gpu.key.startswith(key)), 8)
    if n_gpus > max(usual, _RACK.get(gpu.key, 0)):
        notes.append(f"GPUs per node not given: {usual} assumed")
    return min(usual, n_gpus) if gpu.key not in _RACK else usual


def _inside(
    gpu: Accelerator, generation: Generation, n: int, domain_ranks: float, domains: int, notes: list[str]
) -> tuple[float, float, float, bool, bool]:
    """Ring, pair and spread rates inside a domain, whether over PCIe, whether the figures are published."""
    mesh = MESHES.get(gpu.key)
    if mesh is not None:
        if not mesh.known:
            notes.append(f"RCCL's tables do not have {gpu.name}: a neighbour's figures")
        return (
            *_mesh_rates(mesh.link_gb_per_s, mesh.node_gb_per_s, domain_ranks, domains),
            False,
            mesh.known,
        )
    link = gpu.link
    if link is None or (link.optional and not (n == 2 and domains == 1)):
        if link is not None:
            notes.append(f"a bridge between pairs of {gpu.name} is not counted")
        rate = _pcie_rate(gpu, notes)
        return rate, rate, rate, True, False
    if link.optional:
        notes.append("with the NVLink bridge between the two")
    wire = link.count * generation.nvlink_gb_per_s * (link.each_bytes_per_s / _link_bytes_per_s(generation))
    pair = wire * link.peer_links / link.count
    ring = wire * constants.RING_SHARE
    known = link.peer_links == link.count
    return ring, pair * constants.PEER_SHARE, wire * constants.SPREAD_SHARE, False, known


def _link_bytes_per_s(generation: Generation) -> float:
    """Peak of the link that NCCL's rate of the generation stands for, bytes/s."""
    return 50e9 if generation.key == "blackwell" else 25e9


def _mesh_rates(link: float, node: float | None, domain_ranks: float, domains: int) -> tuple[float, float, float]:
    """A full mesh of g devices has g(g-1) one-way links: g-1 closed rings, or g rings that leave the node."""
    peers = max(domain_ranks - 1, 0)
    rings = domain_ranks if domains > 1 else peers
    ring = link * rings
    if node is not None and domain_ranks > 2:
        ring = min(ring, node)
    if domain_ranks == 1:
        ring = math.inf
    share = constants.MESH_SHARE
    return ring * share, link * share, max(link * peers, link) * share


def _pcie_rate(gpu: Accelerator, notes: list[str]) -> float:
    generation, lanes = gpu.pcie or (4, 16)
    rate = pcie_bytes_per_s(generation, lanes)
    if isinstance(rate, Unavailable):
        raise UsageError(f"{gpu.name} has no link with a known rate", why=rate.reason)
    if gpu.key.startswith(_NO_PEER_ACCESS):
        notes.append("over PCIe through host memory: the driver allows these cards no peer access")
        return rate / GB * constants.PCIE_HOST_SHARE
    notes.append("over PCIe switches; slower where GPUs hang on two sockets")
    return rate / GB * constants.PCIE_SHARE


def _between(
    gpu: Accelerator,
    generation: Generation,
    domain: int,
    node: int,
    fabric: Fabric | None,
    adapters_per_node: int | None,
    notes: list[str],
) -> tuple[float, float, bool]:
    """Rate of a domain's adapters together, latency of the fabric, whether both are known."""
    usual = next(
        (rate for key, rate in _USUAL_ADAPTER_BY_GPU.items() if gpu.key.startswith(key)),
        400.0 if gpu.key.startswith("mi3") else _USUAL_ADAPTER_GBIT[generation.key],
    )
    known = fabric is not None and fabric.known
    share, latency, rate, count = 0.94, 0.0, None, None
    if fabric is not None:
        share, latency = fabric.rate_share, fabric.latency_us
        rate, count = fabric.adapter_bytes_per_s, fabric.adapters_per_node
        if not fabric.known:
            notes.append(f"{fabric.name}: {fabric.latency_source}")
    if rate is None:
        rate = usual / 8 * GB
        what = "network not given" if fabric is None else f"rate of {fabric.name} not given"
        notes.append(f"{what}: {usual:.0f} Gbit/s adapters assumed")
        known = False
    count = adapters_per_node or count or node
    return rate / GB * count * (domain / node) * share, latency, known


def launched_by_one(where: Place) -> bool:
    """Published tables of one node before Hopper are taken with one process that drives all GPUs."""
    return (
        where.caller == "nccl-tests"
        and where.library == "nccl"
        and where.domains == 1
        and where.generation.key in ("volta", "ampere")
    )

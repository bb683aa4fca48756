"""From GPU, counts and network to the rates and latencies that an algorithm's cost is made of.

A network between nodes is data: rate of an adapter, share reached, latency of a step on top of NCCL's own (which assumes a
fast RDMA fabric). Where no figure is published the entry says so, and intervals are wider.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.words import unknown
from stepscope.machine.peaks import Accelerator
from stepscope.machine.peaks.rates import pcie_bytes_per_s
from stepscope.predict.collectives import constants
from stepscope.predict.collectives.constants import GENERATIONS, MESHES, Generation


@record
class Fabric:
    """One kind of network. adapter_bytes_per_s: bit rate / 8 of one adapter, None: the GPU generation's usual one.

    adapters_per_node: None: one for each GPU. latency_source: where that comes from (the table has that of the share, too);
    sourced: both are published or measured on several systems. protocols: the ones NCCL may use on it.
    """

    key: str
    name: str
    adapter_bytes_per_s: float | None
    adapters_per_node: int | None
    rate_share: float
    latency_us: float
    latency_source: str
    sourced: bool
    protocols: tuple[str, ...]


def _fabric_of_row(row: Mapping[str, str]) -> Fabric:
    """Return the network of a row of the table, bytes/s."""
    rate, adapters = row["adapter_gbit_per_s"], row["adapters_per_node"]
    return Fabric(
        key=row["key"],
        name=row["name"],
        adapter_bytes_per_s=float(rate) * 1e9 / 8 if rate else None,
        adapters_per_node=int(adapters) if adapters else None,
        rate_share=float(row["rate_share"]),
        latency_us=float(row["latency_us"]),
        latency_source=row["latency_source"],
        sourced=row["sourced"] == "yes",
        protocols=tuple((row["protocols"] or "LL LL128 Simple").split()),
    )


with Path(__file__).with_name("fabrics.csv").open(encoding="utf-8", newline="") as _table:
    FABRICS: tuple[Fabric, ...] = tuple(map(_fabric_of_row, csv.DictReader(_table)))
"""LL128 needs adapters that deliver 128 bytes whole: through libfabric that is the adapter's secret, and no table of EFA or
Slingshot shows it in use. Release notes of GPUDirect-TCPXO: NCCL_PROTO=Simple,LL128 by default since 2025-05, Simple alone
before."""
_BY_KEY = {fabric.key: fabric for fabric in FABRICS}
_IB_NAMES = ("qdr", "fdr", "edr", "hdr", "ndr", "xdr")
_EFA_BY_GPU = (
    ("v100", "efa-p3dn"), ("a100", "efa-p4d"), ("h100", "efa-p5"), ("h200", "efa-p5en"), ("b200", "efa-p6-b200"),
    ("b300", "efa-p6-b300"),
)  # fmt: skip
_WHOLE_NUMBER = r"(?<!\d)(?<!\d[.,])"
"""Before a number: what follows is no end of a longer one, such as the 50 of 12.50."""
_RATE = re.compile(
    rf"(?:(\d+)\s*[x×][^\d,;]*?)?{_WHOLE_NUMBER}(\d{{1,4}}\.\d+|\d{{2,4}})\s*((?i:gb(?:it|ps|e|/s)?|g))\b"
)
_MOST_GBIT = 800.0
"""Of one adapter: a higher rate without a count is the whole node's."""
_NODE_RATE = re.compile(
    rf"{_WHOLE_NUMBER}(\d{{1,5}}\.\d+|\d{{2,5}})\s*gb(?:ps|it|/s)\s*(?:/|per )\s*(?:node|instance)", re.IGNORECASE
)


_OTHER_NAMES = {"tcpx": "gpudirect-tcpx", "tcpxo": "gpudirect-tcpxo"}


def find_fabric(key: str, *, gpu_key: str = "") -> Fabric:
    """The network called ``key``, or described by several words with a rate (``8x 50GBps EFA v4``).

    gpu_key: tells the generations of one name apart. Unknown: UsageError with did-you-mean.
    """
    name = _OTHER_NAMES.get(key.lower(), key.lower())
    if name in _BY_KEY:
        return _BY_KEY[name]
    described = read_fabric(key, gpu_key=gpu_key) if " " in key.strip() and _RATE.search(key) else None
    if described is None:
        raise UsageError(unknown("network", key, _BY_KEY), fix=f"--network takes {', '.join(_BY_KEY)}")
    return described


def read_fabric(text: str, *, gpu_key: str) -> Fabric | None:
    """The network meant by free text (``InfiniBand``, ``EFA (instance spec 400 Gbps/node)``) or a key; None: none meant.

    A rate for the whole node in the text replaces the entry's adapters by one of that rate.
    """
    words = text.lower()
    if not words.strip():
        return None
    if words in _BY_KEY:
        return _BY_KEY[words]
    fabric = _fabric_of_words(words, gpu_key)
    if fabric is None:
        return None
    match, whole = _RATE.search(text), _NODE_RATE.search(text)
    if whole and not (match and match[1]):
        return replace(fabric, adapter_bytes_per_s=float(whole[1]) / 8 * 1e9, adapters_per_node=1)
    if match:
        gbit = float(match[2]) * (8 if match[3].startswith("GB") and match[3] != "GBE" else 1)  # GBps: bytes
        count = int(match[1]) if match[1] else fabric.adapters_per_node
        if gbit > _MOST_GBIT and not match[1]:
            count = 1
        return replace(fabric, adapter_bytes_per_s=gbit / 8 * 1e9, adapters_per_node=count)
    return fabric


def _fabric_of_words(words: str, gpu_key: str) -> Fabric | None:
    """Return the cloud network that these words name, for this GPU; None: they name none."""
    if "tcpxo" in words:
        return _BY_KEY["gpudirect-tcpxo"]
    if "tcpx" in words:
        return _BY_KEY["gpudirect-tcpx"]
    if "efa" in words:
        return _BY_KEY[next((key for part, key in _EFA_BY_GPU if gpu_key.startswith(part)), "efa-p5")]
    if re.search(r"omni-?path|\bopa\b", words):
        return _BY_KEY["omni-path"]
    if "slingshot" in words:
        return _BY_KEY["slingshot-11"]
    if re.search(r"infiniband|\bib\b|quantum", words):
        name = next((name for name in _IB_NAMES if name in words), None)
        return _BY_KEY[f"infiniband-{name}" if name else "infiniband"]
    if re.search(r"roce|rdma|spectrum", words):
        return _BY_KEY["roce"]
    return None


GB = 1e9
Caller = Literal["nccl-tests", "torch"]

_WITHOUT_SWITCH = ("gh200",)


@record
class Place:
    """Where the ranks sit and what lies between them. Rates in GB/s (1e9), one direction.

    domain_ranks: ranks that reach each other without the network (a node, or an NVLink rack); domains: how many of those.
    ring: what rings inside a domain carry on the wire of one GPU; pair: one GPU to one other; spread: one GPU to all.
    switch_peak: link peak where the switch can reduce, else None. node_net: a domain's adapters together, share reached
    included; gpu_net: one GPU's part of it. net_latency_us: of the fabric, above the library's.
    sourced: the fabric and link figures are published. notes: what was assumed.
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
    sourced: bool
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
    """Place a job's ranks on the machine. Raises UsageError for counts that cannot be."""
    if n_gpus < 1:
        raise UsageError(f"{n_gpus} GPUs cannot hold a collective", fix="give 2 or more")
    if gpus_per_node is not None and gpus_per_node < 1:
        raise UsageError(f"{gpus_per_node} GPUs per node", fix="give 1 or more")
    notes: list[str] = []
    generation = GENERATIONS[gpu.generation]
    node = gpus_per_node or _usual_node(gpu, n_gpus, notes)
    domain = max(node, gpu.rack)
    domains = math.ceil(n_gpus / domain)
    domain_ranks = n_gpus / domains
    if domains > 1 and domain > node:
        notes.append(f"NVLink reaches {domain} GPUs of a rack, {node} a tray")
    published = True
    ring, pair, spread, over_pcie, links_known = _inside_rates(gpu, generation, n_gpus, domain_ranks, domains, notes)
    published = published and links_known
    switched = (
        gpu.vendor == "NVIDIA"
        and generation.nvls_rate > 0
        and not over_pcie
        and not gpu.key.startswith(_WITHOUT_SWITCH)
    )
    net, latency, fabric_known = 0.0, 0.0, True
    if domains > 1:
        net, latency, fabric_known = _between_rates(gpu, domain, node, fabric, adapters_per_node, notes)
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
        sourced=published and fabric_known,
        notes=tuple(notes),
    )


def _usual_node(gpu: Accelerator, n_gpus: int, notes: list[str]) -> int:
    if n_gpus > max(gpu.node, gpu.rack):
        notes.append(f"GPUs per node not given: {gpu.node} assumed")
    return gpu.node if gpu.rack else min(gpu.node, n_gpus)


def _inside_rates(
    gpu: Accelerator, generation: Generation, n: int, domain_ranks: float, domains: int, notes: list[str]
) -> tuple[float, float, float, bool, bool]:
    """Ring, pair and spread rates inside a domain, whether over PCIe, whether the figures are published."""
    mesh = MESHES.get(gpu.key)
    if mesh is not None:
        if not mesh.sourced:
            notes.append(f"RCCL's tables do not have {gpu.name}: a neighbour's figures")
        return (*_mesh_rates(mesh.link_gb_per_s, mesh.node_gb_per_s, domain_ranks, domains), False, mesh.sourced)
    link = gpu.link
    if link is None or (link.optional and not (n == 2 and domains == 1)):
        if link is not None:
            notes.append(f"a bridge between pairs of {gpu.name} is not counted")
        rate = _pcie_gb_per_s(gpu, notes)
        return rate, rate, rate, True, False
    if link.optional:
        notes.append("with the NVLink bridge between the two")
    peak = 50e9 if generation.key == "blackwell" else 25e9  # of the link that NCCL's rate of the generation stands for
    wire = link.count * generation.nvlink_gb_per_s * (link.each_bytes_per_s / peak)
    pair = wire * link.peer_links / link.count
    ring = wire * constants.RING_SHARE
    published = link.peer_links == link.count
    return ring, pair * constants.PEER_SHARE, wire * constants.SPREAD_SHARE, False, published


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


def _pcie_gb_per_s(gpu: Accelerator, notes: list[str]) -> float:
    """Return GB/s over PCIe, with a note where it is assumed. Raises UsageError where the GPU's generation is unknown."""
    generation, lanes = gpu.pcie or (4, 16)
    rate = pcie_bytes_per_s(generation, lanes)
    if isinstance(rate, Unavailable):
        raise UsageError(f"{gpu.name} has no link with a known rate", why=rate.reason)
    if not gpu.peer_access:
        notes.append("over PCIe through host memory: the driver allows these cards no peer access")
        return rate / GB * constants.PCIE_HOST_SHARE
    notes.append("over PCIe switches; slower where GPUs hang on two sockets")
    return rate / GB * constants.PCIE_SHARE


def _between_rates(
    gpu: Accelerator,
    domain: int,
    node: int,
    fabric: Fabric | None,
    adapters_per_node: int | None,
    notes: list[str],
) -> tuple[float, float, bool]:
    """Rate of a domain's adapters together, latency of the fabric, whether both are known."""
    published = fabric is not None and fabric.sourced
    share, latency, rate, count = 0.94, 0.0, None, None
    if fabric is not None:
        share, latency = fabric.rate_share, fabric.latency_us
        rate, count = fabric.adapter_bytes_per_s, fabric.adapters_per_node
        if not fabric.sourced:
            notes.append(f"{fabric.name}: {fabric.latency_source}")
    if rate is None:
        rate = gpu.adapter_bytes_per_s
        what = "network not given" if fabric is None else f"rate of {fabric.name} not given"
        notes.append(f"{what}: {rate * 8 / GB:.0f} Gbit/s adapters assumed")
        published = False
    count = adapters_per_node or count or node
    return rate / GB * count * (domain / node) * share, latency, published


def launched_by_one(where: Place) -> bool:
    """Return whether one process drives all GPUs, as in published tables of one node before Hopper."""
    return (
        where.caller == "nccl-tests"
        and where.library == "nccl"
        and where.domains == 1
        and where.generation.key in ("volta", "ampere")
    )

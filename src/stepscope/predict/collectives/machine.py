"""From GPU, counts and network to the rates and latencies that an algorithm's cost is made of.

A network between nodes is data: rate of an adapter, share reached, latency of a step on top of NCCL's own (which assumes a
fast RDMA fabric). Where no figure is published the entry says so, and intervals are wider.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Literal

from stepscope.core.errors import Unavailable, UsageError
from stepscope.core.words import unknown
from stepscope.machine.peaks import Accelerator
from stepscope.machine.peaks.rates import LINKS, pcie_bytes_per_s
from stepscope.predict.collectives import constants
from stepscope.predict.collectives.constants import GENERATIONS, MESHES, Generation

VERBS_SHARE = 0.94
VERBS_SOURCE = "NVIDIA/nccl-tests issue 290, maintainer: 46 to 48 GB/s of a 400 Gbit/s adapter (2025-03)"
NO_LL128 = ("LL", "Simple")
"""LL128 needs adapters that deliver 128 bytes whole; through libfabric that is the adapter's secret, and no table of EFA
or Slingshot shows it in use."""
OFI_SHARE = 0.83
OFI_SOURCE = "no published figure; EFA (p4de) and Slingshot 11 tables reach 0.82 and 0.84 of the bit rate"
TCP_SOURCE = "no published figure: a default"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fabric:
    """One kind of network. adapter_bytes_per_s: bit rate / 8 of one adapter, None: the GPU generation's usual one.

    adapters_per_node: None: one for each GPU. latency_source, share_source: where those two come from; sourced: both are
    published or measured on several systems. protocols: the ones NCCL may use on it.
    """

    key: str
    name: str
    adapter_bytes_per_s: float | None
    adapters_per_node: int | None
    rate_share: float
    share_source: str
    latency_us: float
    latency_source: str
    sourced: bool
    protocols: tuple[str, ...] = ("LL", "LL128", "Simple")


_NCCL_ZERO = "NVIDIA/nccl v2.30.7-1, src/transport/net_ib: adapters report no latency of their own"
_PLUGIN = "aws/aws-ofi-nccl 2daf7d30 (2026-08), src/platform-aws.cpp"
_MODEL = "aws/aws-ofi-nccl 2daf7d30 (2026-08), src/tuner/nccl_ofi_model.cpp: 8-byte RDMA write {} us, less NCCL's 5"


def _verbs(key: str, name: str, rate: float | None) -> Fabric:
    return Fabric(
        key=key, name=name, adapter_bytes_per_s=rate, adapters_per_node=None, rate_share=VERBS_SHARE,
        share_source=VERBS_SOURCE, latency_us=0.0, latency_source=_NCCL_ZERO, sourced=True,
    )  # fmt: skip


def _efa(key: str, name: str, gbit: float, adapters: int, latency_us: float, latency_source: str) -> Fabric:
    return Fabric(
        key=key, name=name, adapter_bytes_per_s=gbit / 8 * 1e9, adapters_per_node=adapters, rate_share=OFI_SHARE,
        share_source=OFI_SOURCE, latency_us=latency_us, latency_source=latency_source, sourced=True, protocols=NO_LL128,
    )  # fmt: skip


def _from_links(prefix: str) -> list[tuple[str, str, float]]:
    return [(link.key, link.name, link.bytes_per_s) for link in LINKS if link.key.startswith(prefix)]


FABRICS: tuple[Fabric, ...] = (
    _verbs("infiniband", "InfiniBand", None),
    *(_verbs(key, name, rate) for key, name, rate in _from_links("infiniband-")),
    _verbs("roce", "RoCE", None),
    *(
        _verbs(key.replace("ethernet", "roce"), name.replace("Ethernet", "RoCE"), rate)
        for key, name, rate in _from_links("ethernet-")
        if rate >= 25e9 / 8
    ),
    _efa("efa-p3dn", "EFA, p3dn (V100)", 100, 1, 150.0, _PLUGIN),
    _efa("efa-p4d", "EFA, p4d and p4de (A100)", 100, 4, 75.0, _PLUGIN),
    _efa("efa-p5", "EFA, p5 and p5e (H100, H200)", 100, 32, 15.0, _MODEL.format(20)),
    _efa("efa-p5en", "EFA, p5en (H200)", 200, 16, 13.0, _MODEL.format(18)),
    _efa("efa-p6", "EFA, p6 (B200's; efa-p6-b300 has twice the adapters)", 400, 8, 13.0, _MODEL.format(18)),
    _efa("efa-p6-b200", "EFA, p6 (B200)", 400, 8, 13.0, _MODEL.format(18) + " (the p5en's)"),
    _efa("efa-p6-b300", "EFA, p6 (B300)", 400, 16, 13.0, _MODEL.format(18) + " (the p5en's)"),
    Fabric(
        key="omni-path", name="Omni-Path 100", adapter_bytes_per_s=12.5e9, adapters_per_node=None, rate_share=OFI_SHARE,
        share_source=OFI_SOURCE, latency_us=0.0, latency_source="no published figure: NCCL's own", sourced=False,
        protocols=NO_LL128,
    ),
    Fabric(
        key="slingshot-11", name="HPE Slingshot 11", adapter_bytes_per_s=25e9, adapters_per_node=None,
        rate_share=OFI_SHARE, share_source=OFI_SOURCE, latency_us=0.0,
        latency_source="no published figure; NCCL's own fits the one table seen", sourced=False, protocols=NO_LL128,
    ),
    Fabric(
        key="gpudirect-tcpxo", name="GPUDirect-TCPXO (A3 Mega)", adapter_bytes_per_s=25e9, adapters_per_node=8,
        rate_share=0.92, share_source="two A3 Mega tables: 0.90 (all-reduce) and 0.94 (all-gather)", latency_us=38.0,
        # Release notes of GPUDirect-TCPXO: NCCL_PROTO=Simple,LL128 by default since 2025-05, Simple alone before.
        latency_source="no published figure; two A3 Mega tables give 37 and 40 us a step if taken with LL128, 8 us if "
        "with Simple alone, and do not say which",
        sourced=False,
        protocols=("LL128", "Simple"),
    ),
    Fabric(
        key="gpudirect-tcpx", name="GPUDirect-TCPX (A3 High)", adapter_bytes_per_s=25e9, adapters_per_node=4,
        rate_share=0.85, share_source=TCP_SOURCE, latency_us=50.0,
        latency_source="no published figure: the TCPXO's and some", sourced=False, protocols=("Simple",),
    ),
    *(
        Fabric(
            key=key, name=f"{name}, TCP sockets", adapter_bytes_per_s=rate, adapters_per_node=1, rate_share=0.7,
            share_source=TCP_SOURCE, latency_us=30.0, latency_source=TCP_SOURCE, sourced=False, protocols=NO_LL128,
        )
        for key, name, rate in _from_links("ethernet-")
    ),
)  # fmt: skip

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
    fabric = _kind(words, gpu_key)
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


def _kind(words: str, gpu_key: str) -> Fabric | None:
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
    generation = GENERATIONS[generation_of(gpu)]
    node = gpus_per_node or _usual_node(gpu, n_gpus, notes)
    domain = max(node, _RACK.get(gpu.key, 0))
    domains = math.ceil(n_gpus / domain)
    domain_ranks = n_gpus / domains
    if domains > 1 and domain > node:
        notes.append(f"NVLink reaches {domain} GPUs of a rack, {node} a tray")
    published = True
    ring, pair, spread, over_pcie, links_known = _inside(gpu, generation, n_gpus, domain_ranks, domains, notes)
    published = published and links_known
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
        sourced=published and fabric_known,
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
        if not mesh.sourced:
            notes.append(f"RCCL's tables do not have {gpu.name}: a neighbour's figures")
        return (*_mesh_rates(mesh.link_gb_per_s, mesh.node_gb_per_s, domain_ranks, domains), False, mesh.sourced)
    link = gpu.link
    if link is None or (link.optional and not (n == 2 and domains == 1)):
        if link is not None:
            notes.append(f"a bridge between pairs of {gpu.name} is not counted")
        rate = _pcie_rate(gpu, notes)
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
    published = fabric is not None and fabric.sourced
    share, latency, rate, count = 0.94, 0.0, None, None
    if fabric is not None:
        share, latency = fabric.rate_share, fabric.latency_us
        rate, count = fabric.adapter_bytes_per_s, fabric.adapters_per_node
        if not fabric.sourced:
            notes.append(f"{fabric.name}: {fabric.latency_source}")
    if rate is None:
        rate = usual / 8 * GB
        what = "network not given" if fabric is None else f"rate of {fabric.name} not given"
        notes.append(f"{what}: {usual:.0f} Gbit/s adapters assumed")
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

"""Constants of the collectives' model: NCCL's and RCCL's own tables, and how much of them real machines reach. Data.

Microseconds and GB/s (1e9), as printed. Order inside a row: LL, LL128, Simple; inside a rate: 1, 2, more nodes.
What machines reach is a property of a class of hardware, not of a source; docs/reference/validation.md has the evidence:
what each becomes when any one source is left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepscope.core.dataclass import record

SOURCE = "NVIDIA/nccl v2.30.7-1, src/graph/tuning.cc (defaults of the tuner's constants)"
"""Of 2026-06; links: src/graph/topo.h."""

PROTOCOLS = ("LL", "LL128", "Simple")
Row = tuple[float, float, float]


@record
class Latencies:
    """Latencies of one algorithm. base_us: of the call, by protocol. link_us, pci_us, net_us: of one step over NVLink or
    xGMI, PCIe, the network."""

    base_us: Row
    link_us: Row
    pci_us: Row
    net_us: Row


RING = Latencies(base_us=(6.6, 14.0, 8.4), link_us=(0.6, 1.9, 3.4), pci_us=(1.0, 2.5, 5.7), net_us=(2.7, 4.0, 14.0))
TREE = Latencies(base_us=(6.8, 14.0, 8.4), link_us=(0.6, 1.25, 4.0), pci_us=(1.0, 1.9, 4.0), net_us=(5.0, 8.5, 14.0))
NVLS_US = 25.0
"""One in-switch reduction on one node."""
NVLS_TREE_NET_US = 20.9
PAT_BASE_US = 8.0
PAT_LINEAR_US = 2.8
"""Of parallel aggregated trees, for each rank."""
PAT_NET_DIVISOR = 3.5
PAT_RATE = 0.75
NET_OVERHEAD_US = 1.0
"""Host cost of posting one network operation (2.0 on AMD CPUs; LL and LL128: once, Simple: three times)."""
RING_PLATEAU = {"volta": 1.9, "ampere": 1.4, "hopper": 1.4, "blackwell": 1.4}
"""Simple rings across nodes: factor on the latency of an all-reduce once a rank and channel have 64 bytes."""

LL_RATE = 0.5
"""LL carries 4 bytes of data with 4 bytes of flag."""
LL128_RATE = 0.92
LL128_TREE_RATE = (7 / 9, 120 / 128, 120 / 128)
TREE_RATE = 0.92
TREE_LL_RATE = 1 / 3.8


@record
class Generation:
    """What differs between GPU generations. nvlink_gb_per_s: one link, one direction, as NCCL counts it.

    channels: of a ring inside a node; our reading of NCCL's debug logs, only caps of single protocols hang on it.
    nvls_rate: share of the links that in-switch reduction reaches, NCCL's estimate; 0: the switch cannot. nvls_speeds:
    rates that NCCL's search tries for one of its channels (src/graph/search.cc).
    """

    key: str
    nvlink_gb_per_s: float
    channels: int
    ll_max: Row
    ring_ll128_channel: Row
    tree_ll128_channel: Row
    tree_channel: Row
    nvls_rate: float
    nvls_tree_channel: Row = (0.0, 0.0, 0.0)
    nvls_speeds: tuple[float, ...] = ()


def _row_with_tuples(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in row.items()}


_TABLES: Mapping[str, Any] = json.loads(Path(__file__).with_name("tables.json").read_bytes())
GENERATIONS: Mapping[str, Generation] = {
    key: Generation(**_row_with_tuples(row)) for key, row in _TABLES["generations"].items()
}
TREE_MID_SIZES: tuple[tuple[float, ...], ...] = tuple(map(tuple, _TABLES["tree_mid_sizes"]))
"""Share of its rate that a tree all-reduce reaches, by protocol, at 64 B, 128 B, ... 512 MiB."""


RCCL_SOURCE = "ROCm/rccl 0cbce2a7 (2.21.5), src/graph/tuning.cc, model of the MI300 series (tuning 5)"
"""Of 2024-10; links: src/graph/topo.h and rome_models.cc."""

RCCL_RING = Latencies(
    base_us=(12.0, 12.0, 17.0), link_us=(0.8, 0.8, 2.1), pci_us=(2.2, 2.2, 5.7), net_us=(9.5, 9.5, 320.0)
)
RCCL_TREE = Latencies(
    base_us=(12.0, 12.0, 17.0), link_us=(0.9, 0.9, 2.3), pci_us=(2.2, 2.2, 5.7), net_us=(10.5, 10.5, 25.0)
)
RCCL_RING_RATE: Row = (0.08, 0.0, 1.0)
"""Share of the links' rate by protocol; 0: the protocol is off."""
RCCL_TREE_RATE: tuple[Row, Row] = ((0.06, 0.0, 0.11), (0.06, 0.0, 0.59))
"""On two nodes and on more."""


@record
class XgmiMesh:
    """xGMI between the devices of a node. link_gb_per_s: one link, one direction, as RCCL counts it.

    node_gb_per_s: what a ring through the whole node gets where the mesh is not full; None: every pair has a link.
    all_pairs: RCCL runs MSCCL's all-pairs programs on eight devices (on by default, RCCL's README).
    """

    link_gb_per_s: float
    node_gb_per_s: float | None = None
    all_pairs: bool = False
    sourced: bool = True


MESHES: Mapping[str, XgmiMesh] = {key: XgmiMesh(**row) for key, row in _TABLES["meshes"].items()}
"""known False: not in RCCL's table at that version; the neighbour's share (three quarters) of the link's peak."""


RING_SHARE = 0.98
"""Rings on NVLink against NCCL's link rates: 235/240 (A100), 365/371 (H100, H200) GB/s."""

MESH_SHARE = 0.96
"""Rings on xGMI against RCCL's link rates: 315/336 (8 MI300X), 47.7/48 (2), 350/384 (32 MI325X) GB/s."""

PEER_SHARE = 0.81
"""Send/receive between two GPUs against NCCL's link rates: 195/240 GB/s (A100); one table."""

SPREAD_SHARE = 0.95
"""All-to-all inside a node against NCCL's link rates: 224/240 GB/s (A100); one log."""

SWITCH_SHARE = 0.783
"""In-switch reduction: this x NCCL's efficiency of the generation x link peak x (heads - 1) / heads of S a second.

At 4 GiB and more 270 (8 H200), 259 (5 H200), 274 (8 H100) and 483 (8 B200) GB/s are 0.81 to 0.85 of what stands after
"this x", 425 (72 GB200) 0.73; 64 MiB to 2 GiB get 0.93 of that. One number for all sizes lies between.
"""

CHUNK_BYTES = 512 * 1024
"""One step's buffer of a channel: NCCL_BUFFSIZE 4 MiB / 8 steps. A pipeline moves at full rate once these are filled."""

TREE_CHUNK_STEP_US = 28.0
"""A tree's step with Simple and full chunks: NVIDIA/nccl v2.20.5-1, src/graph/tuning.cc, which says that it is the time
of a 256 KiB chunk. Later tables print 4.0, which steers the choice but is not the time."""

TREE_CHUNK_BYTES = 32 * 2**20
"""Size from which the chunks of trees over nodes are full; below it NCCL cuts them smaller."""

POST_US = 0.5
"""Host cost of queueing one send or receive of an all-to-all, gather or scatter; one log (8 A100)."""

PCIE_SHARE = 0.75
"""PCIe behind switches: packet headers and both directions in use. A default: 48/63 GB/s in one table (4 H100)."""

PCIE_HOST_SHARE = 0.35
"""PCIe through host memory: each byte crosses twice (cards without peer access). A default, nothing to check it by."""

LAUNCH_PER_GPU_US = 2.8
"""Kernel launches of one process that drives all GPUs of a node, one after the other.

NVIDIA/nccl-tests issue 123 (DGX A100, 2 to 8 GPUs: 10 to 33.7 us, 3.95 us a GPU) less the ring's two LL steps.
"""

TORCH_CALL_US = 30.0
"""A blocking torch.distributed call with events around it, above the library's own time: 29 to 33 us in three tables."""

ROUNDING = 0.92
"""Exponent that joins latency and transfer, (a**p + b**p)**(1/p): 1 is their sum, less than 1 a rounder knee."""

"""NCCL's own published tuning constants: latencies and per-protocol rates its chooser works with. Data, no code.

Microseconds and GB/s (1e9), as printed. Order inside a row: LL, LL128, Simple; inside a rate: 1, 2, more nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SOURCE = "NVIDIA/nccl v2.30.7-1, src/graph/tuning.cc (defaults of the tuner's constants)"
LINK_SOURCE = "NVIDIA/nccl v2.30.7-1, src/graph/topo.h"
DATE = "2026-06"

PROTOCOLS = ("LL", "LL128", "Simple")
Row = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """base_us: of the call, by protocol. link_us, pci_us, net_us: of one step over NVLink or xGMI, PCIe, the network."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
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


GENERATIONS: Mapping[str, Generation] = {
    "volta": Generation(
        key="volta", nvlink_gb_per_s=20.0, channels=12, ll_max=(39.0, 39.0, 20.4),
        ring_ll128_channel=(20.0, 20.0, 20.0), tree_ll128_channel=(20.0, 20.0, 20.0),
        tree_channel=(26.5, 18.5, 10.0), nvls_rate=0.0,
    ),
    "ampere": Generation(
        key="ampere", nvlink_gb_per_s=20.0, channels=24, ll_max=(87.7, 22.5, 19.0),
        ring_ll128_channel=(20.0, 20.0, 20.0), tree_ll128_channel=(20.0, 20.0, 20.0),
        tree_channel=(24.0, 23.6, 17.8), nvls_rate=0.0,
    ),
    "hopper": Generation(
        key="hopper", nvlink_gb_per_s=20.6, channels=16, ll_max=(141.0, 45.0, 35.0),
        ring_ll128_channel=(36.7, 36.7, 36.7), tree_ll128_channel=(36.7, 36.7, 29.0),
        tree_channel=(38.7, 41.4, 36.0), nvls_rate=0.85, nvls_tree_channel=(0.0, 57.7, 45.5),
        nvls_speeds=(60.0, 50.0, 40.0, 30.0, 24.0, 20.0, 15.0, 12.0, 11.0, 6.0, 3.0),
    ),
    "blackwell": Generation(
        key="blackwell", nvlink_gb_per_s=40.1, channels=16, ll_max=(282.0, 90.0, 70.0),
        ring_ll128_channel=(40.0, 40.0, 40.0), tree_ll128_channel=(55.6, 31.67, 20.0),
        tree_channel=(70.0, 42.8, 24.0), nvls_rate=0.74, nvls_tree_channel=(0.0, 96.0, 80.0),
        nvls_speeds=(90.0, 80.0, 70.0, 60.0, 50.0, 45.0, 40.0, 30.0, 24.0, 20.0, 19.0, 18.0),
    ),
}  # fmt: skip

TREE_MID_SIZES: tuple[tuple[float, ...], ...] = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.8, 0.9, 0.9, 0.9, 0.9, 1, 1, 1),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.6, 0.7, 0.8, 0.7, 0.7, 0.8, 0.9,
     0.9, 0.9),
)  # fmt: skip
"""Share of its rate that a tree all-reduce reaches, by protocol, at 64 B, 128 B, ... 512 MiB."""

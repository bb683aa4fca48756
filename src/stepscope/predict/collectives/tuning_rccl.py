"""RCCL's own tuning constants and link rates, for AMD devices. Data, no code. Microseconds and GB/s (1e9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.predict.collectives.tuning_nccl import Latencies, Row

SOURCE = "ROCm/rccl 0cbce2a7 (2.21.5), src/graph/tuning.cc, model of the MI300 series (tuning 5)"
LINK_SOURCE = "ROCm/rccl 0cbce2a7, src/graph/topo.h and rome_models.cc"
DATE = "2024-10"

RING = Latencies(base_us=(12.0, 12.0, 17.0), link_us=(0.8, 0.8, 2.1), pci_us=(2.2, 2.2, 5.7), net_us=(9.5, 9.5, 320.0))
TREE = Latencies(base_us=(12.0, 12.0, 17.0), link_us=(0.9, 0.9, 2.3), pci_us=(2.2, 2.2, 5.7), net_us=(10.5, 10.5, 25.0))
RING_RATE: Row = (0.08, 0.0, 1.0)
"""Share of the links' rate by protocol; 0: the protocol is off."""
TREE_RATE: tuple[Row, Row] = ((0.06, 0.0, 0.11), (0.06, 0.0, 0.59))
"""On two nodes and on more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XgmiMesh:
    """xGMI between the devices of a node. link_gb_per_s: one link, one direction, as RCCL counts it.

    full: every pair has a link. node_gb_per_s: what a ring through the whole node gets where the mesh is not full.
    all_pairs: RCCL runs MSCCL's all-pairs programs on eight devices (on by default, RCCL's README).
    """

    link_gb_per_s: float
    full: bool
    node_gb_per_s: float | None = None
    all_pairs: bool = False
    known: bool = True


MESHES: Mapping[str, XgmiMesh] = {
    "mi100": XgmiMesh(link_gb_per_s=24.0, full=True, known=False),
    "mi210": XgmiMesh(link_gb_per_s=36.0, full=True, known=False),
    "mi250": XgmiMesh(link_gb_per_s=36.0, full=False, node_gb_per_s=161.4, known=False),
    "mi250x": XgmiMesh(link_gb_per_s=36.0, full=False, node_gb_per_s=161.4),
    "mi300a": XgmiMesh(link_gb_per_s=48.0, full=True, known=False),
    "mi300x": XgmiMesh(link_gb_per_s=48.0, full=True, all_pairs=True),
    "mi325x": XgmiMesh(link_gb_per_s=48.0, full=True, all_pairs=True),
    "mi350x": XgmiMesh(link_gb_per_s=57.6, full=True, known=False),
    "mi355x": XgmiMesh(link_gb_per_s=57.6, full=True, known=False),
}
"""known False: not in RCCL's table at that version; the neighbour's share (three quarters) of the link's peak."""

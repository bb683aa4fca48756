"""The link matrix and the peaks of memory snapshots are shown."""

from __future__ import annotations

from stepscope.environment.topology import Topology, parse_topology
from stepscope.records.memory_snapshot import MemorySnapshot
from stepscope.report.render import markdown
from stepscope.report.views import memory_snapshots, topology

MATRIX = """\
        GPU0    GPU1    NIC0    CPU Affinity
GPU0     X      NV12    PIX     0-7
GPU1    NV12     X      SYS     8-15
NIC0    PIX     SYS      X

NIC Legend:

  NIC0: mlx5_0
"""


def test_the_link_matrix_has_a_row_a_device() -> None:
    parsed = parse_topology(MATRIX)
    assert isinstance(parsed, Topology)
    table = topology.build(parsed)
    assert [[value.text for value in row.values] for row in table.rows] == [
        ["GPU0", "·", "NV12"],
        ["GPU1", "NV12", "·"],
        ["mlx5_0", "PIX", "SYS"],
    ]
    assert "SYS: across NUMA nodes" in table.footnotes[0]


def test_a_snapshots_peak_stands_in_bytes() -> None:
    snapshot = MemorySnapshot(
        path="a/memory.pickle", device=0, segments=2, segment_bytes=3 << 30, allocated_bytes=1 << 30, active_bytes=1 << 30,
        inactive_split_bytes=0, largest_free_bytes=0, events=9, peak_requested_bytes=2 << 30, peak_reserved_bytes=3 << 30,
    )  # fmt: skip
    table = memory_snapshots.build((snapshot,))
    assert "2.00 GiB" in markdown.render(table)
    assert {c.key: v.raw for c, v in zip(table.columns, table.rows[0].values, strict=True)}[
        "peak_requested_bytes"
    ] == 2 << 30

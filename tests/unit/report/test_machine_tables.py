"""The link matrix and the peaks of memory snapshots are shown."""

from __future__ import annotations

from stepscope.machine.topology import Topology, parse_topology
from stepscope.records.imported import MemoryHolder, MemoryOverTime, MemorySnapshot
from stepscope.report.render import files
from stepscope.report.views import links, memory

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
    table = links.topology_table(parsed)
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
    table = memory.memory_snapshots_table((snapshot,))
    assert "2.00 GiB" in files.as_markdown(table)
    assert {c.key: v.raw for c, v in zip(table.columns, table.rows[0].values, strict=True)}[
        "peak_requested_bytes"
    ] == 2 << 30


def recorded() -> MemorySnapshot:
    """A history of three kinds, whose peak is in its middle."""
    return MemorySnapshot(
        path="a/memory.pickle", device=0, segments=2, segment_bytes=9 << 20, allocated_bytes=4 << 20, active_bytes=4 << 20,
        inactive_split_bytes=0, largest_free_bytes=0, events=9, peak_requested_bytes=8 << 20, requested_bytes=3 << 20,
        kinds=(("parameters", 2 << 20), ("gradients", 1 << 20)),
        peak_kinds=(("parameters", 2 << 20), ("activations", 6 << 20)),
        history_ns=5_000_000,
        peak_holders=(MemoryHolder(where="m.py:1 f", kind="activations", size_bytes=6 << 20, blocks=3),),
        over_time=MemoryOverTime(
            times_ns=(0, 2_000_000, 5_000_000), events=(0, 5, 9),
            bytes_by_kind=(("parameters", (2 << 20,) * 3), ("gradients", (0, 0, 1 << 20)), ("activations", (0, 6 << 20, 0))),
        ),
    )  # fmt: skip


def test_kinds_at_the_peak_add_up_in_the_table_and_are_areas_in_the_chart() -> None:
    snapshot = recorded()
    rows = [[value.raw for value in row.values[1:]] for row in memory.memory_kinds_table((snapshot,)).rows]
    assert rows == [
        ["parameters", 2 << 20, 0.25, 2 << 20],
        ["gradients", 0, 0.0, 1 << 20],
        ["activations", 6 << 20, 0.75, 0],
        ["all", 8 << 20, 1.0, 3 << 20],
    ]
    (chart,) = memory.memory_kinds_charts((snapshot,))
    tops = {each["data"]["values"][1]["series"]: each["data"]["values"][1]["to"] for each in chart.spec["layer"]}
    assert tops == {"parameters": 2.0, "gradients": 2.0, "activations": 8.0}
    assert "Peak 8.00 MiB: parameters 2.00 MiB (25%), activations 6.00 MiB (75%)." in chart.caption
    (line,) = memory.memory_holders_tables((snapshot,))[0].rows
    assert [value.text for value in line.values[1:5]] == ["m.py:1 f", "activations", "6.00 MiB", "75%"]

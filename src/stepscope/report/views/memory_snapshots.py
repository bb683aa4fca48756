"""What memory snapshots hold: a device's pool at the snapshot and at its recorded peak."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stepscope.records.imported import MemorySnapshot
from stepscope.report.table import Column, Table, binary_size, tabled, whole
from stepscope.report.view import View


def build(memory: Sequence[MemorySnapshot]) -> Table:
    """One row a device of a snapshot."""
    return tabled(
        "memory_snapshots",
        "Memory snapshots",
        (
            Column("file", "snapshot", lambda m: Path(m.path).name, role="identity", lead=True),
            Column("device", "device", lambda m: m.device, whole, role="identity"),
            Column("peak_requested_bytes", "peak in use", lambda m: m.peak_requested_bytes, binary_size),
            Column("peak_reserved_bytes", "peak reserved", lambda m: m.peak_reserved_bytes, binary_size),
            Column("allocated_bytes", "in use", lambda m: m.allocated_bytes, binary_size),
            Column("segment_bytes", "reserved", lambda m: m.segment_bytes, binary_size),
            Column("capacity_bytes", "capacity", lambda m: m.capacity_bytes, binary_size, drop=1),
            Column("oom_events", "failed requests", lambda m: m.oom_events or None, whole, drop=2),
        ),
        memory,
        footnotes=("peaks: of the recorded history; unknown where none was recorded",),
        notes=tuple(note for each in memory for note in each.notes),
    )


VIEW = View(key="memory_snapshots", title="Memory snapshots", needs=("memory",), table=build)

"""What the CUDA caching allocator held: summary of ``torch.cuda.memory._dump_snapshot``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHolder:
    """Bytes that live blocks allocated from one place in the code hold at the time of the snapshot."""

    where: str  # innermost frame outside torch: file:line function
    size_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """One device's allocator. segment_bytes: reserved from the driver. allocated_bytes: in live blocks. active_bytes: live
    and freed blocks that a stream still uses. inactive_split_bytes: free blocks inside segments that are partly in use: what
    fragmentation cannot give back. largest_free_bytes: the largest request that the pool serves without asking the driver.

    peak_*: from the recorded history, None where it was not recorded. capacity_bytes: of the device, where the file says.
    events: recorded allocator actions; oom_events, driver_allocations (segment_alloc), driver_frees (segment_free),
    retries (freed everything cached, and asked again) among them.
    """

    path: str
    device: int
    segments: int
    segment_bytes: int
    allocated_bytes: int
    active_bytes: int
    inactive_split_bytes: int
    largest_free_bytes: int
    events: int
    peak_allocated_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    capacity_bytes: int | None = None
    oom_events: int = 0
    driver_allocations: int = 0
    driver_frees: int = 0
    retries: int = 0
    holders: tuple[MemoryHolder, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()  # of the allocator (expandable_segments, ...), as recorded
    notes: tuple[str, ...] = ()

    @property
    def fragmentation_fraction(self) -> float | None:
        """Inactive split bytes / reserved bytes (METRICS: Memory); None where nothing is reserved."""
        return self.inactive_split_bytes / self.segment_bytes if self.segment_bytes else None

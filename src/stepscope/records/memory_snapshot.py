"""What the CUDA caching allocator held: summary of ``torch.cuda.memory._dump_snapshot``."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryHolder:
    """Bytes that live blocks allocated from one place in the code hold."""

    where: str  # innermost Python frame outside torch: file:line function
    size_bytes: int
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySnapshot:
    """One device's allocator. segment_bytes: reserved from the driver. allocated_bytes: in live blocks, as rounded up by
    the allocator; requested_bytes: what they were asked for. active_bytes: live and freed blocks that a stream still uses.
    inactive_split_bytes: free blocks inside segments that are partly in use, expandable segments left out: what
    fragmentation cannot give back. largest_free_bytes: the largest request that the pool serves without asking the driver.

    peak_*: from the recorded history, None where none was recorded: peak_requested_bytes: most bytes that live tensors asked
    for at one moment; peak_reserved_bytes: most that was reserved. history_complete: the history begins with an empty pool;
    False: it begins later, and an earlier peak is not known. history_ns: from its first to its last event.
    capacity_bytes: of the device, where the file says (an out-of-memory event tells what the driver had left).
    events: recorded allocator actions. oom_events: requests that failed; oom_request_bytes, oom_driver_free_bytes: the last
    one's size and what the driver still had. driver_allocations, driver_frees: segments got from and given back to the
    driver. retries: times that cached segments were given back directly before a new one was asked for: an allocation that
    did not fit, or torch.cuda.empty_cache(). late_*: in the second half of the recorded requests, where a training loop has
    long settled; late_allocations: requests there.
    holders: at the time of the snapshot; peak_holders: at the recorded peak. Largest first.
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
    requested_bytes: int | None = None
    peak_requested_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    history_complete: bool | None = None
    history_ns: int | None = None
    capacity_bytes: int | None = None
    oom_events: int = 0
    oom_request_bytes: int | None = None
    oom_driver_free_bytes: int | None = None
    driver_allocations: int = 0
    driver_frees: int = 0
    retries: int = 0
    late_allocations: int = 0
    late_driver_allocations: int = 0
    late_driver_frees: int = 0
    late_retries: int = 0
    holders: tuple[MemoryHolder, ...] = ()
    peak_holders: tuple[MemoryHolder, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()  # of the allocator (expandable_segments, ...), as recorded
    notes: tuple[str, ...] = ()

    @property
    def fragmentation_fraction(self) -> float | None:
        """Inactive split bytes / reserved bytes (METRICS: Memory); None where nothing is reserved."""
        return self.inactive_split_bytes / self.segment_bytes if self.segment_bytes else None

    @property
    def expandable_segments(self) -> bool:
        """Whether segments grow in place, which leaves next to no fragments."""
        return dict(self.settings).get("expandable_segments", "False") == "True"

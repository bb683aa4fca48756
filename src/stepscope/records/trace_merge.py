"""What a merged trace holds."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedRank:
    """One rank's part of a merged trace. ``moved_ns``: what its clock was corrected by at the start, 0 if nothing."""

    rank: int
    event_count: int
    moved_ns: int
    first_pid: int
    processes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedTrace:
    """A written file with all ranks on one clock. size_bytes: of the file."""

    path: str
    size_bytes: int
    ranks: tuple[MergedRank, ...]
    notes: tuple[str, ...]

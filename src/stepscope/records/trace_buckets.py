"""Gradient buckets as a trace shows them: what was reduced together during the backward pass, and when."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketRow:
    """One all-reduce that a gradient hook launched on one rank.

    index: order of launch within the step (in the trace, where steps are not marked). wrapper: ddp where the trace shows
    DistributedDataParallel, else hooks.
    members: shapes of the gradients (as text) in the order of the bucket, None where the trace does not tell;
    members_source: copies (DDP's own copies out of the bucket) | accumulated (the gradients that became ready since the
    bucket before, when their sizes add up). ready_ns: the bucket's last gradient was computed (on a device trace: the
    last device work launched before the bucket was done); launch_ns: the host called the collective; start_ns, end_ns:
    it ran. waited_ns: from the later of ready and launch to the start. exposed_ns: not under any computation.
    """

    rank: int
    step: int | None
    index: int
    wrapper: str
    op: str
    dtype: str | None
    size_bytes: int | None
    members: tuple[str, ...] | None
    members_source: str | None
    members_unavailable: str | None
    ready_ns: int | None
    launch_ns: int
    start_ns: int
    end_ns: int
    waited_ns: int
    exposed_ns: int

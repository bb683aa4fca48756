"""Sharded training (FSDP, ZeRO) unit by unit, as one rank's trace shows it. Times in ns."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass

EARLY_SHARE = 0.05
"""A gather was prefetched when the computation before it covers at least this share of it: less is a copy kernel's tail."""

ROOT = "(root)"
"""The unit of whatever no inner unit holds, as FSDP2 leaves it without a name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCall:
    """One collective of a unit. unit: its name, or ``unit N`` by its place in the forward pass; None where unknown.

    op: all_gather | reduce_scatter | all_reduce (replicas of HSDP). phase: forward | backward. size_bytes: whole, gathered.
    early: an all-gather that ran while the computation before it still did, or queued behind communication that did; None
    for the first of its pass, without computation to run beside, and on CPUs.
    room_ns: computation since the gather before it in this pass.
    """

    step: int | None
    place: int  # among all calls of the step
    unit: str | None
    op: str
    phase: str
    size_bytes: int | None
    start_ns: int
    end_ns: int
    exposed_ns: int
    early: bool | None = None
    room_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCopies:
    """Copies of one kind that sharding makes around its collectives. longest_ns: start and end of the longest."""

    kind: str
    calls: int
    busy_ns: int
    exposed_ns: int
    longest_ns: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedUnits:
    """A rank's units. wrapper: fsdp1 | fsdp2 | deepspeed | unknown. named_by: annotation | order.

    source: device | cpu_spans. reserved_bytes: most that the allocator held; capacity_bytes: the device's memory. Both
    None where the trace does not say. host_ns: on CPUs, what the wrapper's own ranges take beside communication, which is
    part of the step there.
    """

    rank: int
    wrapper: str
    named_by: str
    source: str
    calls: tuple[UnitCall, ...]
    reserved_bytes: int | None
    capacity_bytes: int | None
    copies: tuple[UnitCopies, ...] = ()
    host_ns: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCall:
    """One collective of a tensor-parallel group.

    layer: ``blocks.3``, ``head`` or the like as the job's plan says; without a plan ``call N`` by its place in the forward
    pass, None where that is unclear. phase: forward | backward.
    """

    step: int | None
    layer: str | None
    op: str
    phase: str
    size_bytes: int | None
    start_ns: int
    end_ns: int
    exposed_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedLayers:
    """A rank's tensor parallelism. named_by: plan | order. source: device | cpu_spans."""

    rank: int
    named_by: str
    source: str
    group_size: int | None
    calls: tuple[LayerCall, ...]

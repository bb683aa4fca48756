"""How collectives run beside each other and beside the backward pass: lanes, and what each slows the other."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.predict.calibration import usual_cost
from stepscope.records.comm import CommRow

LANES = {"gloo": 2, "nccl": 1}
"""gloo runs a group's collectives on two threads, NCCL one after the other on one stream."""

MIN_BYTES = 256 << 10
"""Overlap is taken from messages of this size on: buckets are no smaller, and shorter ones measure start-up."""

NO_SLOWDOWN = 0.05
"""Computation slowed by less than this share is not slowed: repeated measurements of one machine differ by as much."""

STARTUP_BYTES = 4 << 10
"""A message that is start-up and nothing else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """How collectives run beside each other and beside the backward pass.

    lanes: how many run at once, in launch order. They share the link: what of a collective is wire time takes as many
    times longer as all of them together ask of its rate, the rest does not.
    compute_slowdown: duration of computation while a collective runs / alone; comm_slowdown: of a collective while the
    backward pass runs / alone. 1 or more.
    startup_stalls: starting a collective is work of the cores that compute, and stops computation for as long as the
    smallest message takes (gloo on ranks that have no core to spare).
    """

    lanes: int
    compute_slowdown: float = 1.0
    comm_slowdown: float = 1.0
    startup_stalls: bool = False

    def __post_init__(self) -> None:
        if self.lanes < 1 or self.compute_slowdown < 1 or self.comm_slowdown < 1:
            raise ValueError(f"lanes and slowdowns are at least 1: {self}")


def transport_of(backend: str) -> Transport:
    """The backend's lanes, and no slowdown."""
    try:
        return Transport(lanes=LANES[backend])
    except KeyError:
        raise UsageError(unknown("backend", backend, LANES)) from None


def link_share(op: str, ranks: int, *, backend: str) -> float:
    """Share of the busiest link's rate that one call takes, 0 to 1: what is left, another call may take at the same time."""
    return usual_cost(op, backend).link_share(ranks)


def measured_transport(backend: str, rows: Iterable[CommRow], *, op: str = "all_reduce") -> Transport:
    """The backend's lanes, with the slowdowns of the overlap rows of ``op`` (``stepscope comm --overlap``).

    Medians over the sizes from ``MIN_BYTES`` on. Start-up stalls computation where gloo slows it at all: then the ranks
    have no core to spare. Raises UsageError without such rows.
    """
    found = [
        rates_while_both_run(row.slowdown, row.beside_slowdown)
        for row in rows
        if row.kind == "overlap" and row.status == "ok" and row.op == op and row.backend == backend
        if row.slowdown and row.beside_slowdown and (row.size_bytes or 0) >= MIN_BYTES
    ]
    if not found:
        raise UsageError(
            f"no overlap of {op} on {backend} was measured from {MIN_BYTES >> 10} KiB on",
            fix=f"stepscope comm --ops {op} --sizes 1M:16M:4 --overlap",
        )
    lanes = transport_of(backend).lanes
    comm, compute = (statistics.median(values) for values in zip(*found, strict=True))
    return Transport(
        lanes=lanes,
        comm_slowdown=max(1.0, comm),
        compute_slowdown=max(1.0, compute),
        startup_stalls=backend == "gloo" and compute > 1 + NO_SLOWDOWN,
    )


def rates_while_both_run(comm: float, compute: float) -> tuple[float, float]:
    """(collective, computation): duration while both run / alone, from together / alone of one measurement.

    The two are equally long alone (1) and start together. The one that ends first, at ``first``, ran beside the other
    throughout: its ratio is the slowdown. The other one had got ``first / slowdown`` of its work done by then and did the
    rest alone, so ``slowdown = first / (1 - (last - first))``. Where that is not positive the two were not equally long,
    and the ratio itself is taken.
    """
    first, last = min(comm, compute), max(comm, compute)
    together = 1 - (last - first)
    slower = first / together if together > 0 else last
    return (first, slower) if comm <= compute else (slower, first)

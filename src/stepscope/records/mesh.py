"""The shape that the ranks of a cell are arranged in: which dimension shards what, and where a rank lies in it;
the layout of a pipeline, and what one rank does in it when.

A shape is a mapping of dimension to size, outermost first. It is kept in one form: without dimensions of size 1, and
empty where all ranks are data parallel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from math import prod

from stepscope.core.dataclass import record
from stepscope.core.words import counted

DIMENSIONS = {
    "pp": "pipeline stages",
    "dp_replicate": "replicas of the sharded model",
    "dp_shard": "shards of a replica",
    "dp": "data parallel ranks",
    "tp": "tensor parallel ranks",
}
"""The dimensions, outermost first: ranks of the last one are neighbours, on one host where possible (as in torchtitan)."""

DATA = ("dp_replicate", "dp_shard", "dp")
WORLD = "world"
"""The group of all ranks, where a mesh has several dimensions."""


def canonical(mesh: Mapping[str, int]) -> dict[str, int]:
    """Return ``mesh`` in the form in which it is kept."""
    shape = {name: mesh[name] for name in DIMENSIONS if mesh.get(name, 1) > 1}
    return {} if shape.keys() <= {"dp"} else shape


def full(mesh: Mapping[str, int], world_size: int) -> dict[str, int]:
    """Return the shape with every dimension that has a group: ``{dp: world_size}`` for the empty one."""
    return dict(mesh) or {"dp": world_size}


def size(mesh: Mapping[str, int], world_size: int, dimension: str) -> int:
    """Count the ranks along ``dimension``, 1 where absent; ``dp``: all data parallel ranks, however they are arranged."""
    if dimension == WORLD:
        return world_size
    if dimension.endswith(" ranks"):  # a group of no dimension
        return int(dimension.removesuffix(" ranks"))
    if dimension == "dp":
        return prod(n for name, n in full(mesh, world_size).items() if name in DATA)
    return mesh.get(dimension, 1)


def grows(mesh: Mapping[str, int]) -> str:
    """Return the dimension along which a job gets more ranks: replicas, each of which stays as it is."""
    return "dp_replicate" if mesh.keys() & {"dp_replicate", "dp_shard"} else "dp"


def coordinates(mesh: Mapping[str, int], world_size: int, rank: int) -> dict[str, int]:
    """Return where ``rank`` lies along each dimension of ``full(mesh)``."""
    places = {}
    for name, n in reversed(full(mesh, world_size).items()):
        rank, places[name] = divmod(rank, n)
    return dict(reversed(places.items()))


def members(mesh: Mapping[str, int], world_size: int, rank: int, dimension: str) -> tuple[int, ...] | None:
    """Return the ranks of ``rank``'s group along ``dimension`` (as in :func:`size`); None for a group of no dimension."""
    if dimension.endswith(" ranks"):
        return None
    varied = {"dp": DATA, WORLD: tuple(DIMENSIONS)}.get(dimension, (dimension,))
    places = [coordinates(mesh, world_size, other) for other in range(world_size)]
    return tuple(
        other
        for other, place in enumerate(places)
        if all(at == places[rank][name] for name, at in place.items() if name not in varied)
    )


def text(mesh: Mapping[str, int]) -> str:
    """Write a mesh as ``dp2xtp2``; empty for the default."""
    return "x".join(f"{name}{n}" for name, n in mesh.items())


def misfit(mesh: Mapping[str, object], world_size: int | None) -> str | None:
    """Say why this is no mesh of ``world_size`` ranks (None: of any number) and which would do; None when it is one."""
    if unknown := [name for name in mesh if name not in DIMENSIONS]:
        return f"unknown dimension {unknown[0]!r}: the dimensions are {', '.join(DIMENSIONS)}"
    sizes = {name: n for name, n in mesh.items() if isinstance(n, int) and not isinstance(n, bool) and n > 0}
    if wrong := [name for name in mesh if name not in sizes]:
        return f"{wrong[0]}: a whole number of ranks, at least 1, expected; found {mesh[wrong[0]]!r}"
    if "dp" in sizes and sizes.keys() & {"dp_replicate", "dp_shard"}:
        return "dp is dp_replicate x dp_shard: give it or those two"
    ranks = prod(sizes.values())
    if world_size is None or ranks == world_size:
        return None
    product = " x ".join(f"{name} {n}" for name, n in sizes.items())
    others = ranks // sizes.get("dp", 1)
    fits = [f"world_size {ranks}"]
    if world_size % others == 0:
        fits.insert(0, f"dp {world_size // others}")
    return f"{product} = {counted(ranks, 'rank')}, and world_size is {world_size}: use {' or '.join(fits)}"


SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero_bubble", "zbv")


@record
class PipelineLayout:
    """ranks: p. micro_batches: m of one step. chunks: v, stages a rank (virtual stages).

    schedule: ``gpipe``, ``1f1b`` and ``interleaved`` (Narayanan et al., SC 2021); ``zero_bubble``: ZB-H1 with one chunk,
    torch's InterleavedZeroBubble with more; ``zbv``: ZB-V (both Qi et al., ICLR 2024).
    """

    schedule: str
    ranks: int
    micro_batches: int
    chunks: int = 1

    @property
    def stages(self) -> int:
        return self.ranks * self.chunks

    @property
    def rank_of_stage(self) -> tuple[int, ...]:
        """The rank of each stage: in a loop; ``zbv``: down and up again, so that a rank holds stage s and the s-th last."""
        loop = tuple(range(self.ranks))
        return loop + loop[::-1] if self.schedule == "zbv" else loop * self.chunks

    @property
    def rounds(self) -> int:
        """Number of groups of micro-batches that interleaved schedules take through all chunks one after the other."""
        return max(1, self.micro_batches // self.ranks)

    @property
    def problem(self) -> str | None:
        """Why there is no such schedule."""
        if self.schedule not in SCHEDULES:
            return f"unknown pipeline schedule {self.schedule!r}: choose one of {', '.join(SCHEDULES)}"
        if min(self.ranks, self.micro_batches, self.chunks) < 1:
            return "a pipeline needs at least 1 rank, 1 micro-batch and 1 chunk"
        if self.schedule in ("gpipe", "1f1b") and self.chunks != 1:
            return f"{self.schedule} has one chunk a rank, not {self.chunks}: interleaved and zero_bubble take several"
        if self.schedule == "interleaved" and self.chunks == 1:
            return "interleaved needs 2 chunks a rank or more; with one it is 1f1b"
        if self.schedule == "zbv" and self.chunks != 2:
            return f"zbv has exactly 2 chunks a rank, not {self.chunks}"
        if self.schedule in ("interleaved", "zero_bubble") and self.micro_batches % self.rounds:
            return (
                f"{self.schedule} on {self.ranks} ranks takes micro-batches in {self.rounds} equal rounds, which "
                f"{self.micro_batches} are not: choose a multiple of {self.ranks}"
            )
        return None

    @property
    def bubble(self) -> float:
        """Idle share of the step, equal stages, free messages: (p - 1) / (v m + p - 1).

        Zero-bubble schedules: (p - 1) / (3 v m + p - 1), where forward, input's and weights' gradients take equally long.
        With several chunks m is at least p: fewer micro-batches cannot fill the loop, which the simulation shows.
        """
        return (self.ranks - 1) / (self._units * self.micro_batches + self.ranks - 1)

    @property
    def formula(self) -> str:
        """The formula of ``bubble`` with its numbers put in."""
        work = f"{self._units} x {self.micro_batches}" if self._units > 1 else f"{self.micro_batches}"
        return f"({self.ranks} - 1) / ({work} + {self.ranks} - 1)"

    def micro_batches_for(self, bubble: float) -> int:
        """Return the fewest micro-batches with at most this bubble."""
        fewest = math.ceil((self.ranks - 1) * (1 - bubble) / bubble / self._units - 1e-9)
        if self.schedule in ("interleaved", "zero_bubble"):
            return -(-fewest // self.ranks) * self.ranks  # in whole rounds
        return max(fewest, self.ranks if self.schedule == "1f1b" else 1)

    @property
    def _units(self) -> int:
        return self.chunks * (3 if self.schedule in ("zero_bubble", "zbv") else 1)


@record
class PipelineSpan:
    """One computation. kind: F forward, B backward; zero-bubble schedules split B into I (gradient of the input) and
    W (of the weights). Times from the start of the step.
    """

    rank: int
    stage: int
    micro_batch: int
    kind: str
    start_ns: int
    end_ns: int


@record
class PipelineProfile:
    """What one rank's stages computed in a few steps.

    split: blocks of every stage. steps: times on the rank's own clock, on which ``synced_ns`` is the moment when it left a
    barrier of all ranks; ranks of one host share that clock.
    """

    layout: PipelineLayout
    split: tuple[int, ...]
    synced_ns: int
    steps: tuple[tuple[PipelineSpan, ...], ...]

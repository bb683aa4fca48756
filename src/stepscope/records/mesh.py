"""The shape that the ranks of a cell are arranged in: which dimension shards what, and where a rank lies in it.

A shape is a mapping of dimension to size, outermost first. It is kept in one form: without dimensions of size 1, and
empty where all ranks are data parallel.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from stepscope.core.words import counted

DIMENSIONS = {
    "pp": "pipeline stages",
    "dp_replicate": "replicas of the sharded model",
    "dp_shard": "shards of a replica",
    "dp": "data parallel ranks",
    "tp": "tensor parallel ranks",
}
"""Outermost first: the ranks of the last one are neighbours, on one host where possible (the order of torchtitan)."""

DATA = ("dp_replicate", "dp_shard", "dp")
WORLD = "world"
"""The group of all ranks, where a mesh has several dimensions."""


def canonical(mesh: Mapping[str, int]) -> dict[str, int]:
    """``mesh`` in the form in which it is kept."""
    found = {name: mesh[name] for name in DIMENSIONS if mesh.get(name, 1) > 1}
    return {} if found.keys() <= {"dp"} else found


def full(mesh: Mapping[str, int], world_size: int) -> dict[str, int]:
    """The shape with every dimension that has a group: ``{dp: world_size}`` for the empty one."""
    return dict(mesh) or {"dp": world_size}


def size(mesh: Mapping[str, int], world_size: int, dimension: str) -> int:
    """Ranks along ``dimension``: ``dp`` is all data parallel ranks, however they are arranged; 1 where absent."""
    if dimension == WORLD:
        return world_size
    if dimension.endswith(" ranks"):  # a group of no dimension
        return int(dimension.removesuffix(" ranks"))
    if dimension == "dp":
        return prod(n for name, n in full(mesh, world_size).items() if name in DATA)
    return mesh.get(dimension, 1)


def grows(mesh: Mapping[str, int]) -> str:
    """The dimension along which a job gets more ranks: replicas, each of which stays as it is."""
    return "dp_replicate" if mesh.keys() & {"dp_replicate", "dp_shard"} else "dp"


def coordinates(mesh: Mapping[str, int], world_size: int, rank: int) -> dict[str, int]:
    """Where ``rank`` lies along each dimension of ``full(mesh)``."""
    found = {}
    for name, n in reversed(full(mesh, world_size).items()):
        rank, found[name] = divmod(rank, n)
    return dict(reversed(found.items()))


def members(mesh: Mapping[str, int], world_size: int, rank: int, dimension: str) -> tuple[int, ...] | None:
    """The ranks of ``rank``'s group along ``dimension`` (as in :func:`size`); None for a group of no dimension."""
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
    """``dp2xtp2``; empty for the default."""
    return "x".join(f"{name}{n}" for name, n in mesh.items())


def misfit(mesh: Mapping[str, object], world_size: int | None) -> str | None:
    """Why this is no mesh of ``world_size`` ranks (None: of any number), and which ranks would do; None when it is."""
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

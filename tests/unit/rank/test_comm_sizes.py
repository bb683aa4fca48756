"""Which sizes are measured, which pairs, which matrices."""

from __future__ import annotations

import pytest
import torch

from stepscope.collectives import REGISTRY
from stepscope.rank.collectives import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.collectives import Setup
from stepscope.rank.collectives.table import peers
from stepscope.rank.comm.job import buffer_bytes, plan_size
from stepscope.rank.comm.overlap import rows_of
from stepscope.rank.comm.sweep import all_pairs
from stepscope.rank.mesh import Mesh


def test_every_spec_has_an_implementation() -> None:
    assert IMPLEMENTATIONS.names() == REGISTRY.names()


@pytest.mark.parametrize(
    ("op", "asked", "itemsize", "world", "size"),
    [
        ("all_reduce", 1000, 4, 3, 1000),
        ("all_reduce", 1001, 4, 3, 1000),
        ("all_gather", 1000, 4, 3, 996),
        ("all_to_all_v", 1000, 4, 3, 1000),
        ("reduce_scatter", 2**20, 2, 7, 2**20 - 2**20 % 14),
        ("all_reduce", 4, 4, 8, 4),
    ],
)
def test_sizes_are_rounded_down_to_type_and_world(op: str, asked: int, itemsize: int, world: int, size: int) -> None:
    found = plan_size(REGISTRY.load(op), asked, itemsize=itemsize, world_size=world)
    assert (found.size_bytes, found.numel, found.skipped) == (size, size // itemsize, None)


@pytest.mark.parametrize(
    ("op", "asked", "itemsize", "world", "why"),
    [
        ("all_reduce", 0, 4, 2, "0 bytes: nothing to send"),
        ("all_reduce", 3, 4, 2, "3 bytes: less than 4 bytes (one element)"),
        ("all_gather", 8, 4, 3, "8 bytes: less than 12 bytes (one element for each of 3 ranks)"),
        ("all_gather", 1000, 8, 9, "1,000 bytes would be rounded down to 936, by more than 1%"),
        ("all_reduce", 7, 4, 2, "7 bytes would be rounded down to 4, by more than 1%"),
    ],
)
def test_sizes_that_nothing_divides_are_skipped_with_the_reason(
    op: str, asked: int, itemsize: int, world: int, why: str
) -> None:
    found = plan_size(REGISTRY.load(op), asked, itemsize=itemsize, world_size=world)
    assert (found.size_bytes, found.numel) == (None, None)
    assert (found.skipped or "").startswith(why)


def test_one_percent_is_still_measured() -> None:
    assert plan_size(REGISTRY.load("all_reduce"), 103, itemsize=1, world_size=2).size_bytes == 103
    assert plan_size(REGISTRY.load("all_gather"), 300, itemsize=1, world_size=99).size_bytes == 297
    assert plan_size(REGISTRY.load("all_gather"), 301, itemsize=1, world_size=99).size_bytes is None


def test_a_barrier_has_no_size() -> None:
    assert plan_size(REGISTRY.load("barrier"), 4096, itemsize=4, world_size=2).size_bytes == 0


def setup(*, rank: int = 0, in_place: bool = False, numel: int = 1200, backend: str = "nccl") -> Setup:
    mesh = Mesh(rank=rank, world_size=4, device=torch.device("cpu"), backend=backend)
    return Setup(
        mesh=mesh, dtype=torch.float32, numel=numel, reduce_op="sum", in_place=in_place, root=0, pattern="ring"
    )


@pytest.mark.parametrize(
    ("op", "rank", "in_place", "bytes_of_s"),
    [
        ("all_reduce", 0, True, 1),
        ("all_reduce", 0, False, 2),
        ("all_gather", 0, True, 1),
        ("all_gather", 0, False, 1.25),
        ("reduce_scatter", 0, False, 1.25),
        ("all_to_all", 0, False, 2),
        ("gather", 0, False, 1.25),
        ("gather", 1, False, 0.25),
        ("scatter", 0, True, 1),
        ("barrier", 0, False, 0),
    ],
)
def test_buffers_are_counted_without_making_them(op: str, rank: int, in_place: bool, bytes_of_s: float) -> None:
    size = 2**44  # no machine has it
    one = setup(rank=rank, in_place=in_place, numel=size // 4)
    assert buffer_bytes(IMPLEMENTATIONS.load(op), one, op=op) == bytes_of_s * size


def test_gloo_copies_what_it_reduces_and_scatters() -> None:
    build = IMPLEMENTATIONS.load("reduce_scatter")
    ours = setup(in_place=True, backend="gloo")
    assert buffer_bytes(build, ours, op="reduce_scatter") == 2 * 1200 * 4


def test_every_ordered_pair_goes_one_way_and_every_pair_both() -> None:
    pairs = all_pairs(4)
    one_way = [pair for pair, both in pairs if not both]
    both_ways = [pair for pair, both in pairs if both]
    assert len(set(one_way)) == len(one_way) == 12
    assert len(set(both_ways)) == len(both_ways) == 6
    assert all(a != b for a, b in one_way)
    assert all(a < b for a, b in both_ways)
    assert len(all_pairs(8)) == 84


@pytest.mark.parametrize("world", range(2, 8))
def test_patterns_of_messages_match_on_both_sides(world: int) -> None:
    for pattern in ("uni", "bi", "ring"):
        found = [peers(pattern, rank=r, world_size=world) for r in range(world)]
        sends = {(r, to) for r, (to, _) in enumerate(found) if to is not None}
        receives = {(source, r) for r, (_, source) in enumerate(found) if source is not None}
        assert sends == receives
        expected = {"uni": world // 2, "bi": world // 2 * 2, "ring": world}[pattern]
        assert len(sends) == expected


@pytest.mark.parametrize(
    ("asked", "itemsize", "rows"),
    [(0, 4, 0), (3, 4, 0), (4, 4, 1), (4 * 100 * 100, 4, 100), (2 * 1000 * 1000, 2, 992), (4 * 256 * 256, 4, 256)],
)
def test_matrices_are_square_and_large_ones_aligned(asked: int, itemsize: int, rows: int) -> None:
    assert rows_of(asked, itemsize=itemsize) == rows

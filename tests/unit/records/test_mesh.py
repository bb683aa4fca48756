"""Shapes of ranks: one form for each, coordinates that number the ranks, and refusals that name what would fit."""

from __future__ import annotations

import pytest

from stepscope.records import mesh


def test_only_what_differs_from_data_parallel_is_kept_in_the_order_of_dimensions() -> None:
    assert mesh.canonical({"tp": 2, "dp": 3, "pp": 1}) == {"dp": 3, "tp": 2}
    assert list(mesh.canonical({"tp": 2, "pp": 2})) == ["pp", "tp"]
    assert mesh.canonical({"dp": 4}) == {} == mesh.canonical({})
    assert mesh.text({"dp": 3, "tp": 2}) == "dp3xtp2"


def test_the_last_dimension_has_the_neighbours() -> None:
    shape = {"dp": 2, "tp": 3}
    found = [tuple(mesh.coordinates(shape, 6, rank).items()) for rank in range(6)]
    assert found == [(("dp", d), ("tp", t)) for d in range(2) for t in range(3)]
    assert mesh.coordinates({}, 6, 4) == {"dp": 4}


@pytest.mark.parametrize(
    ("shape", "sizes"),
    [
        ({}, {"dp": 8, "tp": 1, "world": 8}),
        ({"dp": 2, "tp": 4}, {"dp": 2, "tp": 4, "pp": 1, "world": 8}),
        ({"dp_replicate": 2, "dp_shard": 4}, {"dp": 8, "dp_shard": 4}),
        ({"pp": 8}, {"dp": 1, "pp": 8}),
    ],
)
def test_dp_is_all_that_train_on_different_samples(shape: dict[str, int], sizes: dict[str, int]) -> None:
    assert {name: mesh.size(shape, 8, name) for name in sizes} == sizes


@pytest.mark.parametrize(
    ("shape", "world_size", "hint"),
    [
        ({"dp": 2, "tp": 2}, 8, "dp 2 x tp 2 = 4 ranks, and world_size is 8: use dp 4 or world_size 4"),
        ({"dp": 2, "tp": 3}, 8, "and world_size is 8: use world_size 6"),
        ({"dp": 2, "tq": 3}, None, "unknown dimension 'tq': the dimensions are pp, dp_replicate"),
        ({"dp": 2, "dp_shard": 2}, 4, "dp is dp_replicate x dp_shard"),
        ({"tp": 0}, None, "tp: a whole number of ranks, at least 1, expected; found 0"),
        ({"tp": True}, None, "found True"),
        ({"dp": 2, "tp": 2}, 4, None),
        ({"dp": 2, "tp": 2}, None, None),
    ],
)
def test_ranks_that_do_not_fit_are_refused_with_those_that_would(
    shape: dict[str, object], world_size: int | None, hint: str | None
) -> None:
    found = mesh.misfit(shape, world_size)
    assert found == hint or (found is not None and hint is not None and hint in found)

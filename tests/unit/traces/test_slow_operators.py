"""What a late rank takes longer for, in made profiles of kernels and operators by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepscope.records.trace_summary import StepSeries, WorkProfile
from stepscope.traces.slow_operators import slow_operators

STEPS = 10


def of_rank(rank: int, source: str = "cpu", marked: bool = True, **means_us: float) -> Any:
    noise = np.random.default_rng(rank).normal(1, 0.01, (len(means_us) + 1, STEPS))
    means = {"window": 10_000.0 + sum(means_us.values()), **means_us}
    kinds = {"window": "part", **dict.fromkeys(means_us, "kernel" if source == "device" else "operator")}
    series = tuple(
        StepSeries(
            kind=kinds[name],
            name=name.replace("__", "::"),
            calls=None if kinds[name] == "part" else 2 * STEPS,
            per_step_ns=tuple((1000 * mean * row).astype(int).tolist()),
        )
        for (name, mean), row in zip(means.items(), noise, strict=True)
    )
    made = WorkProfile(rank=rank, marked=marked, source=source, steps=tuple(range(STEPS)), series=series)
    return SimpleNamespace(facts=SimpleNamespace(rank=rank), profile=made)


def found(passes: Sequence[Any], *ranks: int) -> list[tuple[int, int, str]]:
    return [(each.rank, each.against, each.name) for each in slow_operators(passes, ranks)]


@pytest.mark.parametrize("source", ["cpu", "device"])
def test_the_operator_that_takes_a_late_rank_longer_is_named_against_a_rank_that_is_not_late(source: str) -> None:
    passes = [
        of_rank(0, source, aten__mm=4000, aten__add=500),
        of_rank(1, source, aten__mm=4600, aten__add=500),
        of_rank(2, source, aten__mm=4000, aten__add=500),
    ]
    assert found(passes, 1) == [(1, 0, "aten::mm")]
    (excess,) = slow_operators(passes, (1,))
    assert excess.kind == ("kernel" if source == "device" else "operator")
    assert excess.excess_ns == pytest.approx(600e3, rel=0.1)
    assert (excess.ratio, excess.calls, excess.calls_against) == (pytest.approx(1.15, rel=0.02), 2, 2)
    assert found(passes, 0, 1)[0][1] == 2


def test_equal_ranks_waiting_and_traces_without_steps_name_nothing() -> None:
    equal = [of_rank(rank, aten__mm=4000, aten__add=500) for rank in range(20)]
    assert [found(equal, rank) for rank in range(20)] == [[]] * 20
    waits = [of_rank(0, gloo__all=100), of_rank(1, gloo__all=900)]
    for each in waits:
        window, reduce = each.profile.series
        each.profile = replace(each.profile, series=(window, replace(reduce, name="gloo:all_reduce")))
    assert found(waits, 1) == []
    assert found([of_rank(0, aten__mm=4000), of_rank(1, marked=False, aten__mm=4600)], 1) == []
    assert found([of_rank(1, aten__mm=4600)], 1) == []
    assert found([of_rank(0, aten__mm=4000), of_rank(1, "device", aten__mm=4600)], 1) == []

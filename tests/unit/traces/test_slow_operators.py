"""What a late rank, or a slow step, takes longer for, in made profiles of kernels and operators by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from stepscope.records.trace_summary import StepSeries, WorkProfile
from stepscope.traces.slow_operators import slow_operators, slow_step_operators

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


def paused(every: int, steps: int, source: str = "cpu", **more_us: float) -> Any:
    """A rank whose every so many steps takes that much longer in the named operators; equal steps scatter by 1%."""
    made = of_rank(0, source, aten__mm=4000, aten__item=20)
    rng = np.random.default_rng(1)
    extra = np.where(np.arange(steps) % every == every - 1, 1000.0, 0.0)
    whole = (1.4e7 + extra * sum(more_us.values())) * rng.normal(1, 0.01, steps)
    took = {"window": whole, "aten::mm": 4e6 * rng.normal(1, 0.01, steps)}
    took |= {name.replace("__", "::"): extra * us + 2e4 * rng.random(steps) for name, us in more_us.items()}
    series = tuple(
        StepSeries(
            kind="part" if name == "window" else "kernel" if source == "device" else "operator",
            name=name,
            calls=None if name == "window" else steps,
            per_step_ns=tuple(each.astype(int).tolist()),
        )
        for name, each in took.items()
    )
    made.profile = replace(made.profile, source=source, steps=tuple(range(100, 100 + steps)), series=series)
    return made


@pytest.mark.parametrize("source", ["cpu", "device"])
def test_what_slow_steps_take_longer_for_is_named(source: str) -> None:
    (found, *rest) = slow_step_operators([paused(11, 22, source, aten__svd=90_000, aten__item=30_000)])
    assert (found.rank, found.against, found.name, found.steps) == (0, None, "aten::svd", (110, 121))
    assert found.excess_ns == pytest.approx(90e6, rel=0.01)
    assert [each.name for each in rest] == ["aten::item"]


def test_slow_steps_that_wait_and_steps_without_a_slow_one_name_nothing() -> None:
    assert slow_step_operators([paused(11, 22, **{"gloo:all_reduce": 90_000})]) == ()
    assert slow_step_operators([paused(100, 22, aten__svd=90_000)]) == ()
    assert slow_step_operators([paused(2, 22, aten__svd=90_000)]) == ()
    assert slow_step_operators([paused(11, 22, aten__svd=1_000)]) == ()

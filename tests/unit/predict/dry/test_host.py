"""A dry run on ranks of the host: measured operators, what lies between them, measured collectives."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tests.dry_ranks import dry_rank, pointwise

from stepscope.predict.collectives.costs import Price
from stepscope.predict.dry.host import HostPricing, measured_rank
from stepscope.predict.prices import Prices
from stepscope.records.dry_run import DryCall, DryRank, ProfiledOperator

MS = 1e6
FORWARD, BACKWARD = pointwise("mul", 4096), pointwise("add", 4096, phase="backward")
ORDER = (FORWARD, FORWARD, BACKWARD, BACKWARD)
PARTS = {"forward": 8 * MS, "backward": 5 * MS, "data": 1 * MS, "other": 0.0}


def row(name: str, ms: float) -> ProfiledOperator:
    return ProfiledOperator(name=f"aten::{name}", shapes="[[4096]]", calls=2, time_ns=int(2 * ms * MS))


ROWS = (row("mul", 3.0), row("add", 2.0))


def call(
    at: int, waited: int | None, *, op: str = "all_reduce", size: int = 10**6, after: int | None = None
) -> DryCall:
    return DryCall(
        op=op, size_bytes=size, dtype="float32", group=0, at=at, waited=waited, phase="backward", after=after
    )


def rank_of(world: int, *calls: DryCall) -> DryRank:
    made = dry_rank(ORDER, calls=calls, groups=(tuple(range(world)),), world=world)
    return replace(made, backend="gloo", device="cpu")


def pricing(rows: tuple[ProfiledOperator, ...] = ROWS, **parts: float) -> HostPricing:
    def of(_: str, size: int, ranks: int) -> Price:
        time = ranks * size * MS / 1e6
        return Price(time_ns=time, low_ns=time / 2, high_ns=time * 2)

    return HostPricing(
        measured=measured_rank(rank_of(1), rows, {**PARTS, **parts}),
        prices=Prices(source="a table", of=of),
        source="a profile",
        memory_bytes=1 << 30,
    )


def test_the_profiled_ranks_have_their_own_step_again() -> None:
    step = pricing().whole(rank_of(1, call(2, None)))
    assert step.parts == pytest.approx({**PARTS, "idle": 0.0, "communication": 0.0}, abs=1e-3)
    assert (step.unit, step.mfu, step.step_ns) == ("rank", None, pytest.approx(14 * MS))


def test_operators_that_take_more_under_the_profiler_than_the_whole_part_without_it_are_shorter() -> None:
    assert pricing(forward=3 * MS).whole(rank_of(1)).parts["forward"] == pytest.approx(3 * MS)


def test_a_collective_hides_behind_what_follows_its_call_and_a_waited_one_behind_nothing() -> None:
    assert pricing().whole(rank_of(4, call(2, None))).exposed_ns == 0  # 4 ms beside the backward pass of 5
    assert pricing().whole(rank_of(4, call(2, 2))).exposed_ns == pytest.approx(4 * MS)
    assert pricing().whole(rank_of(4, call(4, None))).exposed_ns == pytest.approx(4 * MS)


def test_one_thread_makes_a_call_when_it_comes_to_it_whatever_streams_would_do() -> None:
    assert pricing().whole(rank_of(4, call(4, None, after=0))).exposed_ns == pytest.approx(4 * MS)


def test_the_interval_holds_the_prices_of_what_is_exposed() -> None:
    step = pricing().whole(rank_of(4, call(4, None)))
    own = 0.05 * 13 * MS  # operators and what lies between, without loading
    assert step.high_ns - step.step_ns == pytest.approx(math.hypot(4 * MS, own))
    assert step.step_ns - step.low_ns == pytest.approx(math.hypot(2 * MS, own))


def test_a_trace_alone_spreads_what_lies_between_over_all_operators() -> None:
    measured = measured_rank(rank_of(1), ROWS, {"other": 14 * MS})
    assert measured.between_ns == {"forward": 1 * MS, "backward": 1 * MS}


def test_operators_of_other_shapes_are_said_and_doubted() -> None:
    half = replace(
        FORWARD, shapes=((2048,),), read_bytes=FORWARD.read_bytes // 2, written_bytes=FORWARD.written_bytes // 2
    )
    halved = replace(rank_of(4), operators=(half, BACKWARD))
    whole, other = pricing().whole(rank_of(4)), pricing().whole(halved)
    assert "100% of their time" in whole.rests_on
    assert "100% of their time" not in other.rests_on
    assert other.high_ns / other.step_ns > whole.high_ns / whole.step_ns

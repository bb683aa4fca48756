"""Timing calls, and when all ranks stop: without torch's collectives, with a clock and ranks made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from stepscope.rank.comm import loop
from stepscope.rank.comm.loop import FIRST_CHECKS, MOST_CALLS, WARMUP_CHECKS, measure, time_calls
from stepscope.records.comm import CommMeasure

MS = 1_000_000


@dataclass
class Ranks:
    """Rank 0 of a world whose other rank is ``slower`` times as slow."""

    slower: float = 1.0
    decisions: list[Any] = field(default_factory=list)

    def decide(self, value: Any) -> Any:
        self.decisions.append(value)
        return value

    def gather(self, value: list[int]) -> list[list[int]]:
        return [value, [round(v * self.slower) for v in value]]


@dataclass
class Clock:
    """Time that passes only in calls."""

    ns: int = 0

    def monotonic_ns(self) -> int:
        return self.ns


class Calls:
    """Calls that take the durations of ``times``, and a record of the counts asked for."""

    def __init__(self, clock: Clock, times: Iterator[int]) -> None:
        self._clock, self._times = clock, times
        self.counts: list[int] = []

    def __call__(self, count: int) -> list[int]:
        self.counts.append(count)
        made = [next(self._times) for _ in range(count)]
        self._clock.ns += sum(made)
        return made


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(loop.time, "monotonic_ns", fake.monotonic_ns)
    return fake


def forever(*pattern: int) -> Iterator[int]:
    while True:
        yield from pattern


@pytest.mark.parametrize(("warmup", "iterations"), [(0, 1), (0, 7), (5, 20), (3, 0)])
def test_fixed_numbers_are_obeyed_exactly(clock: Clock, warmup: int, iterations: int) -> None:
    calls = Calls(clock, forever(MS, 5 * MS, 100 * MS))
    settings = CommMeasure(warmup=warmup, iterations=iterations, budget_ns=1)
    timed = measure(calls, settings, Ranks())  # type: ignore[arg-type]
    assert len(timed.warmup_ns) == warmup
    assert len(timed.times_ns) == iterations
    assert calls.counts == [warmup, iterations]
    assert timed.stop_reason == "fixed number of calls"


def test_steady_calls_stop_when_two_looks_in_a_row_are_tight(clock: Clock) -> None:
    calls = Calls(clock, forever(1_000_000, 1_001_000, 999_000))
    timed = measure(calls, CommMeasure(), Ranks())  # type: ignore[arg-type]
    assert timed.stop_reason == "interval tight enough"
    assert len(timed.times_ns) == 15  # the first look of two with enough calls is at 10
    assert len(timed.warmup_ns) == 10


def test_noisy_calls_stop_when_the_budget_is_out(clock: Clock) -> None:
    calls = Calls(clock, forever(MS, 3 * MS, 2 * MS, 9 * MS))
    budget = 500 * MS
    timed = measure(calls, CommMeasure(budget_ns=budget), Ranks())  # type: ignore[arg-type]
    assert timed.stop_reason == "budget used up"
    assert 0.9 * budget < clock.ns <= 1.05 * budget


def test_calls_longer_than_the_budget_are_made_a_few_times(clock: Clock) -> None:
    calls = Calls(clock, forever(10_000 * MS))
    timed = measure(calls, CommMeasure(budget_ns=5_000 * MS), Ranks())  # type: ignore[arg-type]
    assert len(timed.warmup_ns) == WARMUP_CHECKS[0] == 1
    assert len(timed.times_ns) == FIRST_CHECKS[0] == 3
    assert timed.stop_reason == "budget used up"


def test_very_short_noisy_calls_end_at_the_most_calls(clock: Clock) -> None:
    calls = Calls(clock, forever(100, 300, 200, 900))
    timed = measure(calls, CommMeasure(ci_fraction=1e-9), Ranks())  # type: ignore[arg-type]
    assert timed.stop_reason == "most calls"
    assert len(timed.times_ns) == MOST_CALLS


def test_the_slowest_rank_decides(clock: Clock) -> None:
    """The other rank swings: no call of ours does, but the time of a call is the slowest rank's."""

    class Swinging(Ranks):
        swing = 0

        def gather(self, value: list[int]) -> list[list[int]]:
            other = []
            for v in value:
                self.swing += 1
                other.append(v * (1 + self.swing % 4))
            return [value, other]

    calls = Calls(clock, forever(MS))
    timed = measure(calls, CommMeasure(budget_ns=200 * MS), Swinging())  # type: ignore[arg-type]
    assert timed.stop_reason == "budget used up"


def test_a_slow_start_is_warm_up(clock: Clock) -> None:
    slow = iter([50 * MS, 30 * MS, 20 * MS, 10 * MS] + [1_000_000 + i % 3 for i in range(10_000)])
    timed = measure(Calls(clock, slow), CommMeasure(), Ranks())  # type: ignore[arg-type]
    assert len(timed.warmup_ns) >= 4
    assert max(timed.times_ns) < 2 * MS


def test_phases_are_told_before_their_calls(clock: Clock) -> None:
    calls, told = Calls(clock, forever(MS)), []
    measure(calls, CommMeasure(warmup=2, iterations=3), Ranks(), on_phase=lambda p: told.append((p, len(calls.counts))))  # type: ignore[arg-type]
    assert told == [("warmup", 0), ("measure", 1)]


def test_pacing_and_telling_happen_before_each_call_and_outside_its_time() -> None:
    order: list[str] = []
    times = time_calls(
        lambda: order.append("call"), 3, enter=lambda: order.append("enter"), pace=lambda: order.append("pace")
    )
    assert order == ["enter", "pace", "call"] * 3
    assert len(times) == 3
    assert all(t >= 0 for t in times)


def test_back_to_back_times_leave_no_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter([0, 10, 25, 45])
    monkeypatch.setattr(loop, "perf_counter_ns", lambda: next(ticks))
    assert time_calls(lambda: None, 3) == [10, 15, 20]
    assert time_calls.__defaults__ is None  # keyword-only


def test_no_calls_take_no_time() -> None:
    assert time_calls(lambda: None, 0) == []
    assert time_calls(lambda: None, 0, pace=lambda: None) == []

"""PlantedFaults faults take the time that they say, of the rank and at the place that they say."""

from __future__ import annotations

import pytest
import torch
from tests.unit.cells import cell_spec

from stepscope.rank import training
from stepscope.rank.timer import StepTimes
from stepscope.rank.training import REMEMBERED, PlantedFaults

CPU = torch.device("cpu")
MS = 1_000_000


class Clock:
    """A clock that only sleeping moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0
        self.slept: list[float] = []
        monkeypatch.setattr(training.time, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(training.time, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += round(seconds * 1e9)


class Step:
    """A step whose times are known at once; computation takes what is given, with what the fault added."""

    def __init__(self, own_ns: int, lost_ns: int) -> None:
        forward = own_ns // 2 + lost_ns
        self._times = StepTimes(2 * own_ns, 0, forward, own_ns - own_ns // 2, own_ns, 0, 0)

    def done(self) -> bool:
        return True

    def times(self) -> StepTimes:
        return self._times


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def run(faults: PlantedFaults, clock: Clock, *, steps: int, own_ns: int = 10 * MS) -> list[int]:
    """Time lost in each step before its computation."""
    lost = []
    for _ in range(steps):
        faults.before_batch()
        before = clock.now
        faults.before_compute()
        lost.append(clock.now - before)
        faults.after_step(Step(own_ns, lost[-1]))
    return lost


def test_a_share_is_of_the_computation_without_what_was_planted(clock: Clock) -> None:
    slow = PlantedFaults(cell_spec(inject="slow_rank=1:30%"), rank=1, device=CPU)
    lost = run(slow, clock, steps=2 * REMEMBERED)
    assert lost[0] == 0, "nothing is known before the first step"
    assert lost[1:] == [3 * MS] * (2 * REMEMBERED - 1), "it does not grow with what was planted before"
    slow.forget()
    run(slow, clock, steps=3)
    assert slow.lost_ns == {"slow_rank": 3 * MS}


def test_other_ranks_lose_nothing(clock: Clock) -> None:
    assert run(PlantedFaults(cell_spec(inject="slow_rank=1:30%"), rank=0, device=CPU), clock, steps=3) == [0, 0, 0]
    assert clock.slept == []


def test_jitter_is_uniform_differs_between_ranks_and_repeats_with_the_seed(clock: Clock) -> None:
    def drawn(rank: int, seed: int) -> list[int]:
        return run(PlantedFaults(cell_spec(inject="jitter=8ms", seed=seed), rank=rank, device=CPU), clock, steps=400)

    first = drawn(0, 1)
    assert first == drawn(0, 1)
    assert first != drawn(1, 1)
    assert first != drawn(0, 2)
    assert min(first) >= 0
    assert 7.5 * MS < max(first) <= 8 * MS
    assert sum(first) / 400 == pytest.approx(4 * MS, rel=0.1)


def test_a_slow_loader_waits_before_the_batch_and_not_in_the_computation(clock: Clock) -> None:
    slow = PlantedFaults(cell_spec(inject="loader=7ms"), rank=0, device=CPU)
    assert run(slow, clock, steps=3) == [0, 0, 0]
    assert clock.slept == [0.007] * 3

"""Successive halving on made times with noise: the planted best wins, ties go to the simpler one, noise wins nothing."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from stepscope.predict.halving import BASELINE, Contender, Lost, Score, better, chosen, ranked, search
from stepscope.records.nouns import Estimate


class Machine:
    """Times of a sample with noise of so much; a rung doubles the number of steps."""

    def __init__(self, times: Mapping[str, float | str], *, noise: float = 0.03, seed: int = 1) -> None:
        self.times, self.noise, self.rng = times, noise, random.Random(seed)
        self.asked: list[tuple[int, tuple[str, ...]]] = []

    def __call__(self, rung: int, keys: Sequence[str]) -> Mapping[str, Score]:
        self.asked.append((rung, tuple(keys)))
        found: dict[str, Score] = {}
        for key in keys:
            time = self.times[key]
            if isinstance(time, str):
                found[key] = Lost(reason=time)
                continue
            steps = 20 * 2**rung
            seen = sorted(time * (1 + self.rng.gauss(0, self.noise)) for _ in range(steps))
            half = 1.96 * 1.25 * self.noise * time / steps**0.5
            middle = seen[steps // 2]
            found[key] = Estimate(value=middle, low=middle - half, high=middle + half)
        return found


def candidates(*keys: str, changes: int = 1) -> list[Contender]:
    return [Contender(key=key, gain=1.5, changes=changes) for key in keys]


def test_the_planted_best_of_six_wins_and_half_goes_at_each_rung() -> None:
    times = {BASELINE: 100.0, "a": 90.0, "b": 60.0, "c": 95.0, "d": 80.0, "e": 75.0, "f": 99.9}
    won, held = [], 0
    for seed in range(40):
        machine = Machine(times, seed=seed)
        found = search(candidates(*"abcdef"), machine)
        won.append(found.best)
        assert [len(keys) - 1 for _, keys in machine.asked] == [6, 3, 2]
        assert all(keys[0] == BASELINE for _, keys in machine.asked)
        assert found.lost.keys() == set("acdef")
        last = found.scores[-1]
        gain = last[BASELINE].over(last["b"])
        held += gain.low < 100 / 60 < gain.high
    assert won == ["b"] * 40
    assert held >= 36


def test_a_configuration_that_is_no_faster_never_takes_the_baselines_place() -> None:
    won = [
        search(candidates("a", "b"), Machine({BASELINE: 100.0, "a": 100.0, "b": 100.4}, seed=s)).best for s in range(60)
    ]
    assert won.count(BASELINE) >= 58


def test_what_fails_is_lost_with_its_reason_and_the_rest_goes_on() -> None:
    found = search(candidates("a", "b"), Machine({BASELINE: 100.0, "a": "out of memory", "b": 50.0}))
    assert found.best == "b"
    assert found.lost == {"a": "out of memory"}


def test_a_baseline_that_fails_ends_the_search() -> None:
    machine = Machine({BASELINE: "exit code 1", "a": 50.0})
    found = search(candidates("a"), machine)
    assert found.best == BASELINE
    assert len(machine.asked) == 1
    assert set(found.lost) == {"a"}


def test_a_tie_goes_to_fewer_changes() -> None:
    scores = {k: Estimate(value=v) for k, v in {"all": 50.0, "one": 50.4, "two": 50.3, "slow": 51.0}.items()}
    assert ranked(scores, {"all": 3, "one": 1, "two": 2, "slow": 1}) == ["one", "two", "all", "slow"]


def test_one_candidate_is_measured_twice_before_it_wins() -> None:
    machine = Machine({BASELINE: 100.0, "a": 70.0})
    assert search(candidates("a"), machine).best == "a"
    assert [rung for rung, _ in machine.asked] == [1, 2]


def test_nothing_to_try_measures_nothing() -> None:
    machine = Machine({BASELINE: 1.0})
    assert search([], machine).best == BASELINE
    assert machine.asked == []


def test_best_predicted_first_then_simpler_then_unknown_and_no_gain_is_not_tried() -> None:
    given = [
        Contender(key="unknown", gain=None),
        Contender(key="none", gain=1.002),
        Contender(key="worse", gain=0.9),
        Contender(key="both", gain=1.501, changes=2),
        Contender(key="one", gain=1.5),
        Contender(key="small", gain=1.1),
    ]
    kept, left = chosen(given, 4)
    assert [c.key for c in kept] == ["one", "both", "small", "unknown"]
    assert [c.key for c in left] == ["none", "worse"]
    assert [c.key for c in chosen(given, 2)[0]] == ["one", "both"]


def test_better_needs_intervals_that_part() -> None:
    a, b = Estimate(value=90, low=80, high=99), Estimate(value=100, low=95, high=105)
    assert not better(a, b)
    assert better(Estimate(value=90, low=85, high=94), b)
    assert better(Estimate(value=90), b)
    assert not better(Estimate(value=99.5), Estimate(value=100))

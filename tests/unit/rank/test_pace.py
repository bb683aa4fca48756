"""Warm-up and stopping: fixed numbers exactly, otherwise rank 0's decision at the same step on every rank."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.unit.cells import cell_spec

from stepscope.rank.pace import Pace
from stepscope.records.cell import MeasureSettings

MS = 1_000_000


@dataclass
class OneRank:
    """A world of one: what it decides is what it hears."""

    rank: int = 0
    decisions: list[Any] = field(default_factory=list)

    def decide(self, value: Any) -> Any:
        self.decisions.append(value)
        return value

    def gather(self, value: Any) -> list[Any]:
        return [value]


@dataclass
class Tape:
    """Stands for the recorder: the step times that it would have resolved."""

    times: list[int]
    warmup_step_ns: list[int] = field(default_factory=list)
    timed_step_ns: list[int] = field(default_factory=list)

    writes: int = 0

    def flush(self) -> None:
        pass

    def write_finished(self) -> None:
        self.writes += 1


def run(cell, measure, times, *, min_warmup=1, epoch_steps=None, full=None) -> tuple[Pace, Tape]:
    tape = Tape(times)
    pace = Pace(cell, measure, OneRank(), tape, min_warmup=min_warmup, epoch_steps=epoch_steps)
    for index, time_ns in enumerate(times):
        is_full = True if full is None else full[index]
        if is_full:
            (tape.warmup_step_ns if pace.warming else tape.timed_step_ns).append(time_ns)
        pace.after_step(full=is_full)
        if pace.stop_reason is not None:
            break
    return pace, tape


@pytest.mark.parametrize("warmup", [0, 1, 7])
def test_fixed_numbers_are_obeyed_exactly(warmup: int) -> None:
    pace, tape = run(cell_spec(steps=13), MeasureSettings(warmup_steps=warmup), [MS] * 1000)
    assert len(tape.warmup_step_ns) == pace.warmup_steps == warmup
    assert len(tape.timed_step_ns) == pace.timed_steps == 13
    assert pace.stop_reason == "fixed number of steps"


def test_tail_windows_are_not_counted_as_timed_steps() -> None:
    full = [True, True, False] * 20
    pace, tape = run(cell_spec(steps=8), MeasureSettings(warmup_steps=0), [MS] * 60, full=full)
    assert pace.timed_steps == len(tape.timed_step_ns) == 8


def test_slow_first_steps_are_warm_up_and_a_quiet_series_stops_early() -> None:
    times = [40 * MS, 30 * MS, 12 * MS] + [10 * MS + i % 3 for i in range(500)]
    pace, tape = run(cell_spec(steps="auto"), MeasureSettings(), times)
    assert 3 <= pace.warmup_steps <= 22
    assert max(tape.timed_step_ns) < 11 * MS
    assert pace.stop_reason == "interval tight enough"
    assert pace.timed_steps <= 33


def test_a_strategy_that_starts_late_keeps_warm_up_open() -> None:
    pace, _ = run(cell_spec(steps="auto"), MeasureSettings(), [10 * MS] * 100, min_warmup=12)
    assert pace.warmup_steps >= 12


@pytest.mark.parametrize("min_warmup", [61, 75])
def test_a_strategy_that_starts_very_late_still_ends_warm_up(min_warmup: int) -> None:
    pace, _ = run(cell_spec(steps=5), MeasureSettings(), [10 * MS] * 300, min_warmup=min_warmup)
    assert min_warmup <= pace.warmup_steps <= min_warmup + 30
    assert pace.stop_reason == "fixed number of steps"


def test_samples_are_written_about_twice_a_second() -> None:
    _, slow = run(cell_spec(steps=20), MeasureSettings(warmup_steps=5), [400 * MS] * 25)
    _, fast = run(cell_spec(steps=1000), MeasureSettings(warmup_steps=5), [MS] * 1005)
    assert slow.writes == 25
    assert fast.writes <= 5 + 5


def test_a_noisy_series_ends_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(0, 10**15, 50 * MS))
    monkeypatch.setattr("stepscope.rank.pace.time.monotonic_ns", lambda: next(clock))
    times = [MS * (1 + 9 * (i % 2)) for i in range(10_000)]
    pace, _ = run(cell_spec(steps="auto"), MeasureSettings(warmup_steps=0, budget_ns=1000 * MS), times)
    assert pace.stop_reason == "budget used up"


def test_a_cell_of_epochs_is_never_stopped() -> None:
    pace, tape = run(cell_spec(steps=None, epochs=2), MeasureSettings(), [MS] * 40, epoch_steps=40)
    assert pace.stop_reason is None
    assert pace.warmup_steps <= 10
    assert len(tape.timed_step_ns) + pace.warmup_steps == 40


def test_very_slow_steps_do_not_spend_the_budget_on_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10**15, 10_000 * MS))
    monkeypatch.setattr("stepscope.rank.pace.time.monotonic_ns", lambda: next(now))
    pace, _ = run(cell_spec(steps="auto"), MeasureSettings(budget_ns=30_000 * MS), [10_000 * MS] * 50)
    assert pace.warmup_steps == 3

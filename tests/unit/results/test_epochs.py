"""The figures of one run: what an epoch takes, the best accuracy, the loss."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.evidence import epochs, run, step

from stepscope.records.nouns import Measured
from stepscope.records.training import Epoch, TrainingRun
from stepscope.results.epochs import (
    best_accuracy,
    dropped_epochs,
    epoch_time,
    exposed_fraction,
    steady_times,
    too_short,
    train_loss,
)
from stepscope.results.learning import losses

S = 1e9


def of(*seconds: float) -> TrainingRun:
    return run("a", epochs=epochs(seconds=list(seconds)))


def test_an_epoch_takes_the_median_after_the_first_of_few_with_their_range() -> None:
    found = epoch_time(of(50.0, 10.0, 12.0, 11.0, 13.0, 10.5, 30.0, 11.5))
    assert (found.value, found.n) == (11.5 * S, 7)
    assert 10 * S <= found.low < 11.5 * S < found.high <= 30 * S
    assert epoch_time(of(9.0, 1.0, 2.0, 4.0)) == Measured(value=2 * S, low=1 * S, high=4 * S, n=3)
    assert epoch_time(of(9.0, 2.0)) == Measured(value=2 * S, n=1)


def test_what_is_dropped_can_be_chosen_and_never_leaves_nothing() -> None:
    some = of(9.0, 2.0, 3.0)
    assert [steady_times(some, n) for n in (0, 1, 2, 3)] == [
        (9 * S, 2 * S, 3 * S), (2 * S, 3 * S), (3 * S,), (9 * S, 2 * S, 3 * S)
    ]  # fmt: skip
    assert [dropped_epochs(some, n) for n in (0, 1, 2, 3)] == [0, 1, 2, 0]
    assert [too_short(some, n) for n in (0, 2, 3)] == [False, False, True]


def test_a_source_that_knows_its_warmup_decides_itself_unless_more_is_asked_for() -> None:
    told = tuple(
        Epoch(number=n, duration_ns=t * S, train_loss=None, warmup=w)
        for n, (t, w) in enumerate([(9.0, True), (7.0, True), (2.0, False), (3.0, False)])
    )
    assert steady_times(run("a", epochs=told), 0) == (2 * S, 3 * S)
    assert steady_times(run("a", epochs=told), 3) == (3 * S,)
    none = tuple(replace(e, warmup=False) for e in told)
    assert len(steady_times(run("a", epochs=none), 1)) == 4
    assert steady_times(run("a", epochs=none), 2) == (2 * S, 3 * S)
    every = tuple(replace(e, warmup=True) for e in told)
    assert len(steady_times(run("a", epochs=every), 2)) == 4


def test_epochs_without_a_time_do_not_count_and_without_any_the_source_is_believed() -> None:
    untimed = tuple(replace(e, duration_ns=None) for e in of(1.0, 2.0).epochs)
    own = Measured(value=5 * S, n=3)
    assert epoch_time(run("a", epochs=untimed, epoch_ns=own)) == own
    assert epoch_time(run("a", epochs=of(1.0, 2.0).epochs, epoch_ns=own)) == Measured(value=2 * S, n=1)
    assert epoch_time(run("a")) is None


def test_best_accuracy_and_loss_are_the_runs_own_or_of_its_epochs() -> None:
    learnt = run("a", epochs=epochs(seconds=[1, 1, 1], accuracy=[0.4, 0.8, 0.7]), test_accuracy=0.7)
    assert best_accuracy(learnt) == 0.8
    assert best_accuracy(learnt, epochs=1) == 0.4
    assert best_accuracy(run("b", epochs=of(1.0).epochs, test_accuracy=0.6)) == 0.6
    assert best_accuracy(run("b", test_accuracy=0.6), epochs=2) is None
    found = epochs(seconds=[1, 1, 1], loss=[2.0, 1.0, 0.5])
    assert train_loss(run("a", epochs=found)) == 0.5
    assert train_loss(run("a", epochs=(*found[:2], replace(found[2], train_loss=None)))) == 1.0
    assert train_loss(run("a", epochs=found, train_loss=3.0)) == 3.0


def test_exposed_communication_is_a_share_of_the_step() -> None:
    assert exposed_fraction(run("a", step_ns=step(10), exposed_comm_ns=step(2))) == 0.2
    assert exposed_fraction(run("a", step_ns=step(10))) is None
    assert exposed_fraction(run("a", step_ns=step(10), exposed_comm_ns=step(10))) == 1.0
    assert exposed_fraction(run("a", step_ns=step(10), exposed_comm_ns=step(12))) is None


def test_epochs_count_by_number_whatever_row_they_stand_in() -> None:
    """Two jobs wrote one file in turns: both first epochs are warm-up, and no loss is that of a first epoch of one run."""
    rows = [(1, 9.0), (2, 2.0), (1, 8.0), (3, 3.0), (2, 2.5)]
    mixed = run("a", epochs=tuple(Epoch(number=n, duration_ns=t * S, train_loss=1.0 / n) for n, t in rows))
    assert sorted(steady_times(mixed, 1)) == [2 * S, 2.5 * S, 3 * S]
    assert losses(replace(mixed, settings={"duplicate_epochs": (1, 2)})) == {}
    late = replace(mixed, epochs=tuple(e for e in mixed.epochs if e.number == 3))
    assert losses(late) == {2: pytest.approx(1 / 3)}
    shuffled = replace(mixed, epochs=(mixed.epochs[3], mixed.epochs[1], mixed.epochs[0]))
    assert losses(shuffled) == {0: 1.0, 1: 0.5, 2: pytest.approx(1 / 3)}
    assert train_loss(shuffled) == pytest.approx(1 / 3)

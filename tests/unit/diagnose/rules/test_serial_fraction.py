from __future__ import annotations

import pytest
from tests.borders import amdahl
from tests.evidence import evidence, rate, run

from stepscope.diagnose.rules.serial_fraction import RULE
from stepscope.records.finding import Skipped


def test_a_serial_part_fires_with_its_limit() -> None:
    (found,) = RULE.check(amdahl(0.1))
    assert found.title == "10% of the work does not shrink with the ranks: at most 10.0x by Amdahl's law"
    assert "1: 1.00x, 2: 1.82x, 4: 3.08x, 8: 4.71x" in found.evidence[0]
    assert "95% interval" in found.evidence[1]
    assert found.stake_fraction == pytest.approx(1 - 1 / 1.7)


def test_the_square_term_is_named_where_the_data_show_it() -> None:
    (found,) = RULE.check(amdahl(0.02, kappa=0.01, sizes=(1, 2, 4, 8, 16)))
    assert any("fastest on 10 ranks" in line for line in found.evidence)
    (found,) = RULE.check(amdahl(0.1, sizes=(1, 2, 4, 8, 16)))
    assert any("no cost that grows with the square" in line for line in found.evidence)


def test_three_sizes_are_refused_with_what_to_run() -> None:
    outcome = RULE.check(amdahl(0.1, sizes=(1, 2, 4)))
    assert isinstance(outcome, Skipped)
    assert outcome.reason == "3 numbers of ranks measured: a scaling law needs at least 4"
    assert outcome.command == "stepscope bench --preset strong-scaling"


def test_weak_scaling_is_not_fitted() -> None:
    outcome = RULE.check(amdahl(0.1, scaling="weak"))
    assert isinstance(outcome, Skipped)
    assert "weak scaling hides" in outcome.reason


def test_strategies_are_fitted_apart() -> None:
    runs = list(amdahl(0.1).runs[:1])
    for strategy, serial in (("ddp", 0.01), ("naive", 0.2)):
        runs += [
            run(
                f"{strategy}{n}",
                ranks=n,
                strategy=strategy,
                samples_per_s=rate(100 * n / (1 + serial * (n - 1))),
            )
            for n in (2, 4, 8)
        ]
    (found,) = RULE.check(evidence(*runs))
    assert found.subject == "toy: naive"
    assert found.title.startswith("20%")

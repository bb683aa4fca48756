from __future__ import annotations

from tests.borders import gpus, product
from tests.evidence import evidence

from stepscope.diagnose.rules.throttling import RULE
from stepscope.records.finding import Quiet, Skipped


def test_a_rank_that_computes_slower_is_named_with_what_it_costs_all() -> None:
    (found,) = RULE.check(evidence(comm=(product(0.25), product(0.2, size=1 << 26))))
    assert found.title == "rank 3 computes 25% slower than the fastest rank on the same product"
    assert found.stake_fraction == 0.25
    assert found.evidence[1] == "the same at 2 of 2 sizes"
    assert found.advice[0].command == "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE"


def test_on_a_cpu_neighbours_are_looked_for_first() -> None:
    (found,) = RULE.check(evidence(comm=(product(0.4, device="cpu"),)))
    assert found.confidence.startswith("likely: shared cores")
    assert "nvidia-smi" not in (found.advice[0].command or "")


def test_a_lowered_power_limit_fires() -> None:
    (found,) = RULE.check(evidence(environment=gpus((400, 400), (250, 400))))
    assert found.title == "power limit lowered on 1 GPU: GPU 1 may draw 250 of 400 W"
    assert found.stake_fraction is None


def test_default_limits_and_equal_ranks_are_quiet() -> None:
    assert isinstance(RULE.check(evidence(environment=gpus((400, 400), (395, 400)))), Quiet)
    outcome = RULE.check(evidence(comm=(product(0.03),)))
    assert isinstance(outcome, Quiet)
    assert outcome.looked_at == "no rank is 10% behind at half of 1 size; most at one: 3.0%"


def test_without_either_it_is_skipped() -> None:
    assert isinstance(RULE.check(evidence()), Skipped)
    assert isinstance(RULE.check(evidence(environment=gpus((None, None)))), Skipped)

"""No rule advises what the evidence at hand makes wrong: one fact changes, and the advice with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.wrong_advice import CASES, Maker, cells, collectives, runs, traces, words

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules import REGISTRY

MODULES = (cells, collectives, runs, traces)
ALL = [pytest.param(key, make, id=f"{key}-{make.__name__}") for key, makers in sorted(CASES.items()) for make in makers]


@pytest.mark.parametrize(("key", "make"), ALL)
def test_advice_follows_the_fact_that_makes_it_right(key: str, make: Maker, tmp_path: Path) -> None:
    found = make(tmp_path)
    rule = REGISTRY.load(key)
    right, wrong = check(rule, found.right), check(rule, found.wrong)
    assert isinstance(right, tuple), f"the rule has to fire where its advice is right: {right}"
    assert found.advice in words(right)
    assert found.advice not in words(wrong)
    assert found.instead in words(wrong)


def test_every_rule_has_such_a_case() -> None:
    assert set(CASES) == set(REGISTRY.names())

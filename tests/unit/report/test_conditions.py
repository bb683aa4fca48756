"""Conditions of --fail-if."""

from __future__ import annotations

import pytest

from stepscope.core.errors import UsageError
from stepscope.report.conditions import parse_condition

METRICS = ("exposed_comm_fraction", "idle_fraction")
RULES = ("launch-bound",)


@pytest.mark.parametrize(
    ("text", "value", "holds"),
    [
        ("exposed_comm_fraction > 0.2", 0.3, True),
        ("exposed_comm_fraction > 0.2", 0.2, False),
        ("exposed_comm_fraction>=0.2", 0.2, True),
        ("exposed_comm_fraction < 1e-1", 0.05, True),
        ("exposed_comm_fraction != 0.5", 0.5, False),
        ("exposed_comm_fraction > 0.2", None, False),
    ],
)
def test_a_condition_compares_the_number(text: str, value: float | None, holds: bool) -> None:
    condition = parse_condition(text, metrics=METRICS, rules=RULES)
    assert condition.holds({"exposed_comm_fraction": value}, ()) is holds


def test_a_rule_s_name_holds_when_the_rule_fires() -> None:
    condition = parse_condition("launch-bound", metrics=METRICS, rules=RULES)
    assert condition.holds({}, {"launch-bound"})
    assert not condition.holds({}, set())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("exposed_com_fraction > 0.2", "did you mean 'exposed_comm_fraction'"),
        ("launch-bond", "did you mean 'launch-bound'"),
        ("exposed_comm_fraction >", "not a condition"),
        ("exposed_comm_fraction > 1.2.3", "is not a number"),
    ],
)
def test_a_mistake_says_what_is_known(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_condition(text, metrics=METRICS, rules=RULES)


def test_where_there_are_no_rules_none_are_offered() -> None:
    with pytest.raises(UsageError, match="'idle_fraction': not a condition") as refused:
        parse_condition("idle_fraction", metrics=METRICS, rules=())
    assert "rule" not in str(refused.value)
    assert "exposed_comm_fraction" in str(refused.value)

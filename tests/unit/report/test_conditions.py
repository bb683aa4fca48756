"""Conditions of --fail-if."""

from __future__ import annotations

import re

import pytest

from stepscope.core.errors import UsageError
from stepscope.report.conditions import parse_condition
from stepscope.results.figures import COMPARED, figures_of

FIGURES = figures_of("job")
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
    condition = parse_condition(text, figures=FIGURES, rules=RULES)
    assert condition.holds({"exposed_comm_fraction": value}, ()) is holds


def test_a_rule_s_name_holds_when_the_rule_fires() -> None:
    condition = parse_condition("launch-bound", figures=FIGURES, rules=RULES)
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
        parse_condition(text, figures=FIGURES, rules=RULES)


def test_where_there_are_no_rules_none_are_offered() -> None:
    with pytest.raises(UsageError, match="'idle_fraction': not a condition") as refused:
        parse_condition("idle_fraction", figures=FIGURES, rules=())
    assert "rule" not in str(refused.value)
    assert "exposed_comm_fraction" in str(refused.value)


UNITS = COMPARED | figures_of("job", "diagnosis")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("samples_per_s < -3", "never true: samples_per_s is at least 0.*did you mean 'samples_per_s < -3%'"),
        ("samples_per_s > -3", "always true.*did you mean 'samples_per_s > -3%'"),
        ("test_accuracy < 95", "always true: test_accuracy is between 0 and 1.*did you mean 'test_accuracy < 0.95'"),
        ("test_accuracy > 95", "never true.*did you mean 'test_accuracy > 0.95'"),
        ("idle_fraction > 1", "never true"),
        ("idle_fraction >= 20", "never true.*did you mean 'idle_fraction >= 0.2'"),
        ("finding_count >= 0", "always true"),
        ("finding_count == -1", "never true"),
        ("finding_count != -1", "always true"),
        ("step_ns < -100%", "never true: a change in per cent is at least -100"),
        ("step_ns <= 0.5%", None),
        ("step_ns > 5%", None),
        ("test_accuracy < 0.95", None),
        ("train_loss < -1", None),
        ("finding_count > 0", None),
        ("samples_per_s < 3", None),
    ],
)
def test_a_condition_that_is_never_or_always_true_is_refused_with_what_was_meant(text: str, said: str | None) -> None:
    if said is None:
        assert parse_condition(text, figures=UNITS, rules=(), percent=True).text == text
        return
    with pytest.raises(UsageError) as refused:
        parse_condition(text, figures=UNITS, rules=(), percent=True)
    assert re.search(said, " ".join(str(refused.value).split()))

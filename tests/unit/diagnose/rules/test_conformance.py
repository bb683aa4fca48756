"""What every rule owes: a page, thresholds with a source, evidence that exists, tests of its own, a row in the docs."""

from __future__ import annotations

import dataclasses
import importlib
import math
import os
import re
from pathlib import Path

import pytest

from stepscope.diagnose.engine import check, page_of
from stepscope.diagnose.rule import PARTS_OF_CLAIM, Declared, Rule
from stepscope.diagnose.rules import REGISTRY, declared
from stepscope.records.finding import Skipped
from stepscope.records.parts import TITLES
from stepscope.results.evidence import NEEDS, Evidence

HERE = Path(__file__).parent
DOCS = HERE.parents[3] / "docs" / "reference" / "diagnose.md"
KEYS = sorted(REGISTRY.names())
SECTIONS = ("What", "Why", "Known problems", "References")
FIELDS = {field.name for field in dataclasses.fields(Evidence)}


@pytest.fixture(params=KEYS)
def key(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def rule(key: str) -> Rule:
    return REGISTRY.load(key)


def test_it_is_called_as_its_file_is(key: str, rule: Rule) -> None:
    assert rule.name == key.replace("_", "-")


def test_its_page_has_all_sections_in_order(rule: Rule) -> None:
    page = page_of(rule)
    first, *parts = re.split(r"^(.+)\n-{3,}$", page, flags=re.MULTILINE)
    assert first.strip(), "a sentence on what is wrong"
    assert tuple(parts[0::2]) == SECTIONS
    assert all(text.strip() for text in parts[1::2])


def test_its_page_and_its_sources_take_a_share_from_its_limit(rule: Rule) -> None:
    """``{name}`` in the page: changing a limit changes what is said of it."""
    assert "{" not in page_of(rule)
    text = " ".join(
        [importlib.import_module(rule.module).__doc__ or "", *(each.source for each in rule.thresholds.values())]
    )
    for name, limit in rule.thresholds.items():
        assert not re.search(rf"(?<![\d.]){100 * limit.value:g}%", text), name


def test_every_threshold_has_a_unit_and_a_source(rule: Rule) -> None:
    for name, threshold in rule.thresholds.items():
        assert math.isfinite(threshold.value), name
        assert threshold.unit.strip(), name
        assert len(threshold.source) > 5, name


def test_a_rule_on_a_share_of_the_window_claims_a_part_of_the_step(rule: Rule) -> None:
    """Without it, a finding on a part and one on the whole that holds it win the same time twice."""
    assert set(rule.claims) <= PARTS_OF_CLAIM.keys()
    assert {name.replace("-", "_") for name in rule.within} <= set(KEYS)
    assert {key for keys in PARTS_OF_CLAIM.values() for key in keys} <= TITLES.keys()
    assert rule.claims or not any(limit.unit == "share of the window" for limit in rule.thresholds.values())


def test_a_problem_is_larger_than_a_warning(rule: Rule) -> None:
    limits = rule.thresholds
    assert not {"warning", "problem"} <= limits.keys() or limits["warning"].value < limits["problem"].value


def test_it_asks_for_evidence_that_exists_and_that_someone_can_get(rule: Rule) -> None:
    for name in (*rule.needs, *rule.any_of):
        assert name in FIELDS
        assert name in NEEDS


def test_what_its_file_declares_is_what_it_asks_for(key: str, rule: Rule) -> None:
    read = declared(key)
    for field in dataclasses.fields(Declared):
        assert getattr(read, field.name) == getattr(rule, field.name), field.name


def test_it_is_in_words_and_in_a_step_of_the_protocol(rule: Rule) -> None:
    assert rule.symptom == rule.symptom.strip().rstrip(".")
    assert "\n" not in rule.symptom
    assert 1 <= rule.protocol <= 5


def test_without_any_evidence_it_is_skipped_with_a_reason(rule: Rule) -> None:
    outcome = check(rule, Evidence(sources=()))
    assert isinstance(outcome, Skipped)
    assert outcome.reason
    assert outcome.rule == rule.name


def test_every_need_is_something_that_evidence_has() -> None:
    assert set(NEEDS) <= FIELDS


def _row(rule: Rule) -> str:
    looks_at = rule.looks_at or ", ".join([*rule.needs, " or ".join(rule.any_of)]).strip(", ")
    limits = (f"{name}: {limit}" for name, limit in rule.thresholds.items())
    return f"| `{rule.name}` | {rule.symptom} | {looks_at} | {'; '.join(filter(None, (rule.decided_by, *limits)))} |\n"


def test_the_reference_has_the_rows_that_the_rules_make() -> None:
    """``STEPSCOPE_RENEW_DOCS=1`` writes them: a limit is changed in its rule alone."""
    text = DOCS.read_text()
    written = re.findall(r"^\| `[a-z0-9][a-z0-9-]*` \|.*\n", text, re.MULTILINE)
    made = [_row(REGISTRY.load(key)) for key in KEYS]
    if os.environ.get("STEPSCOPE_RENEW_DOCS"):
        DOCS.write_text(text.replace("".join(written), "".join(made)))
        return
    assert written == made

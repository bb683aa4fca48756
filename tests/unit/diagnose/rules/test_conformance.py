"""What every rule has: a page, thresholds with sources, tests, and its line in the reference."""

from __future__ import annotations

import dataclasses
import importlib
import re
from pathlib import Path

import pytest

from stepscope.diagnose.evidence import NEEDS, Evidence
from stepscope.diagnose.rules import REGISTRY

ROOT = Path(__file__).parents[4]
SECTIONS = ("What", "Why", "Known problems", "References")
FIELDS = {field.name for field in dataclasses.fields(Evidence)}


@pytest.mark.parametrize("stem", REGISTRY.names())
def test_a_rule_is_called_as_its_file_and_has_a_page(stem: str) -> None:
    rule = REGISTRY.load(stem)
    assert rule.name == stem.replace("_", "-")
    page = importlib.import_module(f"stepscope.diagnose.rules.{stem}").__doc__ or ""
    for section in SECTIONS:
        assert re.search(rf"^{section}\n-+$", page, re.MULTILINE), f"{stem}: no section {section}"


@pytest.mark.parametrize("stem", REGISTRY.names())
def test_a_rule_says_what_it_needs_and_where_its_numbers_come_from(stem: str) -> None:
    rule = REGISTRY.load(stem)
    wanted = {*rule.needs, *rule.any_of}
    assert wanted <= FIELDS
    assert wanted <= set(NEEDS)
    assert all(threshold.source and threshold.unit for threshold in rule.thresholds.values())
    assert 1 <= rule.protocol <= 5


@pytest.mark.parametrize("stem", REGISTRY.names())
def test_a_rule_has_tests_of_its_own(stem: str) -> None:
    assert (Path(__file__).parent / f"test_{stem}.py").is_file()


def test_the_reference_lists_every_rule_with_its_symptom() -> None:
    page = (ROOT / "docs" / "reference" / "diagnose.md").read_text()
    listed = dict(re.findall(r"^\| `([a-z][\w-]*)` \| ([^|]+) \|", page, re.MULTILINE))
    assert listed == {rule.name: rule.symptom for rule in map(REGISTRY.load, REGISTRY.names())}

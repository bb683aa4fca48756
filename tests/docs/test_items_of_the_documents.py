"""docs/reference/documents.md: what each of its lines names is there: commands, options, presets, sections, views, rules."""

from __future__ import annotations

import re
import shlex
from itertools import pairwise

import pytest
from tests.documents import ROOT

from stepscope.cli.command import Said
from stepscope.cli.commands import REGISTRY
from stepscope.diagnose.rules import REGISTRY as RULES
from stepscope.matrix.load import preset_names
from stepscope.report.trace_sections import SECTIONS
from stepscope.report.views import views

TEXT = (ROOT / "docs/reference/documents.md").read_text()
RULE_NAMES = {name.replace("_", "-") for name in RULES.names()}
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ") and not line.startswith("| item")]
COMMANDS = sorted(set(re.findall(r"`(stepscope [^`]*)`", TEXT)))


def test_every_document_has_its_items() -> None:
    parts = dict(re.findall(r"^## (00\d|)[^\n]*\n(.*?)(?=^## |\Z)", TEXT, re.M | re.S))
    assert [name for name in sorted(parts) if name] == ["000", "001", "002", "003", "004"]
    assert all(part.count("\n| ") > 10 for part in parts.values())


@pytest.mark.parametrize("row", ROWS)
def test_a_line_says_what_to_run_or_where_to_read_and_where_it_shows(row: str) -> None:
    item, command, shows = (cell.strip() for cell in row.strip("|").split(" | "))
    assert item
    assert shows
    assert command == "-" or "`stepscope" in command


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_has_the_options_presets_and_sections_that_it_names(line: str) -> None:
    words = shlex.split(line.split(" -- ")[0])[1:]
    assert words[0] in REGISTRY.names()
    options = options_of(words[0])
    assert {word for word in words if word.startswith("-")} <= options
    given = dict(pairwise(words))
    if "--preset" in given:
        assert given["--preset"] in preset_names()
    if words[0] == "trace":
        assert set(given.get("--show", "budget").split(",")) <= {*SECTIONS, "all"}
    if "--rules" in given:
        assert set(given["--rules"].split(",")) <= RULE_NAMES


def test_rules_and_views_that_are_named_exist() -> None:
    for found in re.findall(r"rules? ((?:`[a-z-]+`(?: \([^)]*\))?(?:, | and )?)+)", TEXT):
        assert set(re.findall(r"`([a-z-]+)`", found)) <= RULE_NAMES
    for found in re.findall(r"(?:tables?|charts?) ((?:`[a-z_]+`(?: \([^)]*\))?(?:, | and )?)+)", TEXT):
        assert set(re.findall(r"`([a-z_]+)`", found)) <= set(views())


def test_tests_that_are_named_exist() -> None:
    assert [path for path in re.findall(r"`(tests/[^`]*)`", TEXT) if not (ROOT / path).exists()] == []


def options_of(command: str) -> set[str]:
    classes = REGISTRY.load(command).options.__mro__
    said = [each for kind in classes for each in vars(kind).values() if isinstance(each, Said)]
    return {"--help", *(part for each in said for name in each.names for part in name.split("/"))}

"""What ``stepscope skill`` prints names commands, options, tools, tables, keys and rules that exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Ran

from stepscope.api.assistant import Assistant
from stepscope.api.tables import every_name
from stepscope.cli import app
from stepscope.cli.commands import REGISTRY
from stepscope.cli.commands.schema import documents
from stepscope.diagnose.engine import rule_names
from stepscope.predict.what_if import parse_what_if
from stepscope.records.codec import field_names
from stepscope.records.parts import TITLES
from stepscope.records.prediction import ScaledStep, ScalePrediction
from stepscope.records.schemas import document_schema
from stepscope.report.documents import UNCHANGED
from stepscope.report.trace_sections import chosen

TEXT = Path(app.__file__).with_name("skill.md").read_text(encoding="utf-8")
CODE = re.findall(r"`([^`]+)`", TEXT)
LINES = [line for line in CODE if line.startswith("stepscope ")]


def test_the_command_prints_the_file(ran: Ran) -> None:
    assert ran("skill").out == TEXT


def test_the_front_matter_is_that_of_a_skill() -> None:
    _, head, body = TEXT.split("---\n", 2)
    fields = dict(line.split(": ", 1) for line in head.splitlines())
    assert list(fields) == ["name", "description"]
    assert re.fullmatch(r"[a-z0-9-]{1,64}", fields["name"])
    assert len(fields["description"]) <= 1024
    assert len(body.splitlines()) < 500


@pytest.mark.parametrize("line", LINES)
def test_each_command_and_its_options_exist(line: str) -> None:
    name, *words = shlex.split(line)[1:]
    assert name in REGISTRY.names()
    if "--" in words:
        words = words[: words.index("--")]
    if words and "RULE" not in words:
        app.options_of(name, words + (["--", "x"] if REGISTRY.load(name).runs_a_command else []))
    if "--show" in words:
        assert chosen(words[words.index("--show") + 1].split(","))


def test_loose_options_exist() -> None:
    [loose] = [text for text in CODE if text.startswith("--")]
    assert loose.startswith("--what-if ")
    assert parse_what_if([loose.split()[1]])


def test_each_command_that_answers_a_question_is_named_and_each_tool() -> None:
    named = {line.split()[1] for line in LINES}
    assert {
        "diagnose",
        "trace",
        "compare",
        "predict",
        "plan",
        "watch",
        "doctor",
        "report",
        "run",
        "profile",
        "mcp",
    } <= named
    assert set(Assistant.TOOLS) <= set(CODE)
    tables = re.findall(r"`table` ([\w, ]+) \|", TEXT)
    assert tables
    for name in re.findall(r"\w+", " ".join(tables)):
        assert name in every_name() or name in ("with", "these", "names")


def keys_of(schema: Any) -> set[str]:
    """Every key that a schema knows, however deep."""
    if isinstance(schema, dict):
        own = set(schema.get("properties", ())) | {str(word) for word in schema.get("enum", ())}
        return own.union(*map(keys_of, schema.values()))
    return set().union(*map(keys_of, schema)) if isinstance(schema, list) else set()


def test_each_key_and_rule_that_is_explained_exists() -> None:
    reading = TEXT.partition("## How to read")[2]
    known = {key for name in ("diagnose/1", "compare/1") for key in keys_of(document_schema(name, documents()[name]))}
    known |= {
        *field_names(ScalePrediction),
        *field_names(ScaledStep),
        *TITLES,
        *UNCHANGED,
        "change",
    }
    known |= {*rule_names(), *Assistant.TOOLS, *REGISTRY.names()}
    words = [word for text in re.findall(r"`([^`]+)`", reading) if not text.startswith("stepscope ")
             for word in (text.split(".") if " " not in text else [text])]  # fmt: skip
    assert len(words) > 25
    assert [word for word in words if word not in known] == []

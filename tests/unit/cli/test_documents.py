"""What commands print with --json: the common head, and the keys that `stepscope schema` says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.commands import Ran
from tests.trace_builder import build, write_job

from stepscope.cli.commands.schema import documents
from stepscope.records.schemas import document_schema

pytestmark = pytest.mark.usefixtures("fresh_consoles")


@pytest.mark.parametrize(
    "words",
    [
        ["hardware", "--json"],
        ["bench", "--list", "--json"],
        ["predict", "--collective", "all_reduce", "--size", "1K", "--gpus", "8", "--gpu", "h100-sxm", "--json"],
        ["predict", "--model", "gpt2", "--gpus", "8", "--gpu", "h100-sxm", "--json"],
        ["plan", "--model", "gpt2", "--gpus", "8", "--gpu", "h100-sxm", "--json"],
        ["trace", "new", "--json"],
        ["trace", "new", "--diff", "old", "--json"],
        ["compare", "old", "new", "--json"],
        ["diagnose", "new", "--json"],
        ["diagnose", "--rules", "list", "--json"],
        ["report", "new", "--md", "-o", "out", "--json"],
    ],
    ids=lambda words: " ".join(words[:2] + words[2:3]),
)
def test_a_document_begins_with_its_head_and_has_the_keys_of_its_schema(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Ran
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["stepscope", *words])
    for name, forward in (("old", 100_000), ("new", 150_000)):
        write_job(build(world=1, steps=4, forward_ns=forward), tmp_path / name)
    said = ran(*words)
    assert said.code == 0
    document = json.loads(said.out)
    assert list(document)[:4] == ["schema", "tool_version", "created", "command"]
    assert document["command"] == ["stepscope", *words]
    key = document["schema"].removeprefix("stepscope.")
    schema = document_schema(key, documents()[key])
    assert set(schema["required"]) <= set(document)
    free = {"predict/1", "hardware/1"}  # keys of theirs depend on what was asked for
    assert key in free or set(document) <= set(schema["properties"])

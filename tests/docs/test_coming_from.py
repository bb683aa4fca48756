"""docs/howto/coming-from.md: every call of ours is there, and those in Python answer with a table on the example jobs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.docs.test_items_of_the_documents import options_of
from tests.documents import ROOT

import stepscope
from stepscope.cli.commands import REGISTRY
from stepscope.examples.jobs import EXAMPLES
from stepscope.report.trace_sections import SECTIONS

PAGE = (ROOT / "docs/howto/coming-from.md").read_text()
OURS = [line.rsplit(" | ", 1)[1] for line in PAGE.splitlines() if line.startswith("| ")]
CALLS = sorted({code for cell in OURS for code in re.findall(r"`((?:job|other)\.[^`]*)`", cell)})
COMMANDS = sorted({code for cell in OURS for code in re.findall(r"`stepscope ([^`]*)`", cell)})


def test_calls_answer(tmp_path: Path) -> None:
    for name in ("straggler", "naive", "ddp"):
        EXAMPLES[name].write(tmp_path / name)
    names = {"job": stepscope.open(tmp_path / "straggler")}
    pair = {"other": stepscope.open(tmp_path / "naive"), "job": stepscope.open(tmp_path / "ddp")}
    assert len(CALLS) > 15
    for call in CALLS:
        found = eval(call, pair if call.startswith("other") else names)
        assert call == "job.verdict" or len(found.frames if call.startswith("other") else found), call


@pytest.mark.parametrize("line", COMMANDS)
def test_commands_have_their_options_and_sections(line: str) -> None:
    command, *words = shlex.split(line.split(" -- ")[0])
    assert command in REGISTRY.names()
    assert {word for word in words if word.startswith("-")} <= options_of(command)
    if "--show" in words:
        assert set(words[words.index("--show") + 1].split(",")) <= SECTIONS.keys()

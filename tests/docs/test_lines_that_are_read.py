"""The forms of lines that are read: each has its line in docs/reference/importers.md, which no form before it knows.

A form without a line fails here: put one, as its program prints it, with figures of your own, into the block of its topic.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest
from tests.documents import ROOT

from stepscope.store.importers import detect
from stepscope.store.importers.training_lines import FRAMEWORKS
from stepscope.store.known_texts import KNOWN
from stepscope.store.log_lines import without_prefix
from stepscope.store.signs import TOPICS, SignForm
from stepscope.store.text_signs import signs_beside

TEXT = (ROOT / "docs/reference/importers.md").read_text()
NAMES = 26
"""Columns of a block before its lines."""
HEADINGS = {
    "nccl": "Signs of NCCL",
    "watchdog": "Signs of collectives that did not end",
    "ends": "Signs of processes that ended",
    "exceptions": "Signs of exceptions",
}


def lines_of(heading: str) -> list[tuple[str, bytes]]:
    """(name, line) of the block under a heading."""
    found = re.search(rf"^### {heading}\n.*?^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    assert found, f"no block under {heading}"
    return [(row[:NAMES].strip(), row[NAMES:].encode()) for row in found[1].splitlines()]


def first_of(forms: tuple[SignForm, ...], line: bytes) -> SignForm | None:
    """The form as ``store.signs`` takes it: whole statements, then what is cut, then what is beside others."""
    for cut, beside in ((False, False), (True, False), (False, True)):
        for form in forms:
            if (form.cut, form.beside) == (cut, beside) and form.search(line):
                return form
    return None


@pytest.mark.parametrize("topic", TOPICS)
def test_each_form_of_a_sign_has_its_line_and_knows_no_other(topic: str) -> None:
    forms: tuple[SignForm, ...] = import_module(f"stepscope.store.signs.{topic}").SIGNS
    known = [(name, line, first_of(forms, line)) for name, line in lines_of(HEADINGS[topic])]
    assert [(name, line) for name, line, form in known if form is None or form.kind != name] == []
    counts = {form: sum(form is found for _, _, found in known) for form in forms}
    assert [(form.kind, form.mark) for form, count in counts.items() if count != 1] == []


@pytest.mark.parametrize(("name", "line"), [row for topic in TOPICS for row in lines_of(HEADINGS[topic])])
def test_a_line_alone_is_read_as_its_kind(tmp_path: Path, name: str, line: bytes) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(b"epoch 1\n" + line + b"\nTraceback (most recent call last):\n")
    assert name in {sign.kind for sign in signs_beside([path])}


def test_each_training_loop_has_its_line_and_knows_no_other() -> None:
    rows = lines_of("Logs of training loops")
    patterns = [(name, re.compile(step.encode())) for name, step, _ in FRAMEWORKS]
    first = [next(at for at, (_, p) in enumerate(patterns) if p.search(without_prefix(line)[1])) for _, line in rows]
    assert sorted(first) == list(range(len(patterns)))
    assert [patterns[at][0] for at in first] == [name for name, _ in rows]


@pytest.mark.parametrize(("key", "line"), lines_of("Other logs"))
def test_a_log_is_known_by_its_line(tmp_path: Path, key: str, line: bytes) -> None:
    path = tmp_path / "job.log"
    path.write_bytes((line + b"\n") * 3)
    match = detect(path)
    assert match is not None
    assert match[0] == key


def test_each_text_that_is_refused_by_name_has_its_line() -> None:
    rows = lines_of("Texts that are refused by name")
    found = [[entry.title for entry in KNOWN if re.search(entry.mark, line)] for _, line in rows]
    assert all(len(titles) == 1 for titles in found)
    assert {title for titles in found for title in titles} == {entry.title for entry in KNOWN}

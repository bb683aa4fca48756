"""What is printed is what was meant: names of files are no markup, move no cursor and break no encoding."""

from __future__ import annotations

import io
import sys

import pytest

from stepscope.cli import console
from stepscope.cli.console import checked_streams, visible

HOSTILE = "\x1b]0;title\x07\x1b[31mred[bold]b[/]\x9b2J\u202e.log"


@pytest.fixture(autouse=True)
def fresh() -> object:
    console.out.cache_clear()
    yield None
    console.out.cache_clear()


def test_a_hostile_name_is_shown_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    console.out().print(HOSTILE, style="bold", soft_wrap=True)
    assert capsys.readouterr().out == "]0;title[31mred[bold]b[/]2J.log\n"


def test_tables_are_cleaned_as_sentences_are(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table

    table = Table(title=HOSTILE)
    table.add_column("name")
    table.add_row(HOSTILE)
    console.out().print(table)
    said = capsys.readouterr().out
    assert "red[bold]b[/]" in said
    assert not any(c in said for c in "\x1b\x07\x9b\u202e")


def test_bytes_of_a_name_that_are_no_utf8_become_replacement_characters() -> None:
    assert visible("x\udcff\tok\n") == "x\N{REPLACEMENT CHARACTER}\tok\n"


def test_a_terminal_that_knows_ascii_alone_gets_its_nearest_signs_and_else_question_marks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    with checked_streams():
        sys.stdout.write("• 3 µs → 界\n")
        sys.stdout.flush()
    assert raw.getvalue() == b"* 3 us > ?\n"

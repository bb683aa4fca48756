"""The terminal of commands that are run in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.commands import Ran, Said

from stepscope.cli import console
from stepscope.cli.main import main


@pytest.fixture
def fresh_consoles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """80 columns, and consoles that write to what the test captures."""
    monkeypatch.setenv("COLUMNS", "80")
    for each in (console.out, console.err):
        each.cache_clear()
    yield
    for each in (console.out, console.err):
        each.cache_clear()


@pytest.fixture
def ran(capsys: pytest.CaptureFixture[str]) -> Ran:
    """Runs a command line, and reads what it said; no command ends with a traceback."""

    def run(*words: object) -> Said:
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return Said(int(ended.value.code or 0), said.out, said.err)

    return run

"""The terminal of commands that are run in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stepscope.cli import console


@pytest.fixture
def fresh_consoles(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """80 columns, and consoles that write to what the test captures."""
    monkeypatch.setenv("COLUMNS", "80")
    for each in (console.out, console.err):
        each.cache_clear()
    yield
    for each in (console.out, console.err):
        each.cache_clear()

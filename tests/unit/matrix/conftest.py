from __future__ import annotations

import pytest

from stepscope.matrix import machine


@pytest.fixture
def allow_emulation(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine where emulated networks can be made."""
    monkeypatch.setattr(machine, "_why_no_emulation", lambda _: None)

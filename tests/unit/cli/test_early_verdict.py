"""A verdict on a job that still runs says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diaries import planted

from stepscope.cli.profile_words import show_profiled
from stepscope.store.layout import ProfileLayout


@pytest.mark.parametrize("running", [True, False])
def test_a_verdict_so_far_is_marked(running: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    layout = ProfileLayout(planted(tmp_path / "job"))
    judged = show_profiled(layout, {}, running=running)
    assert judged is not None
    shown = capsys.readouterr().out
    assert shown.startswith("Straggler")
    assert ("so far" in shown) is running

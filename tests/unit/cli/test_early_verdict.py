"""A verdict on a job that still runs says so."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.diaries import planted, write_samples

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


def test_memory_has_a_line_of_its_own_on_terminal_page_and_in_the_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from stepscope.cli.commands.watch import Watch
    from stepscope.cli.watch_run import run

    layout = ProfileLayout(planted(tmp_path / "job"))
    for path in layout.diaries():
        write_samples(path, [2.0**30] * 20)
    show_profiled(layout, {})
    assert "  memory 1.00 GiB a rank, steady\n" in capsys.readouterr().out
    run(Watch(run=layout.root, once=True, html=tmp_path / "page.html"))
    assert "memory 1.00 GiB a rank, steady" in capsys.readouterr().out
    assert "<dt>memory</dt><dd>1.00 GiB a rank, steady</dd>" in (tmp_path / "page.html").read_text()

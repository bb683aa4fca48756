"""A run that was stopped shows the figures of its steps, and that it was stopped."""

from __future__ import annotations

from tests.evidence import run, step

from stepscope.report.render import files
from stepscope.report.views import runs


def test_an_interrupted_run_shows_its_steps_and_how_it_ended() -> None:
    stopped = run("a", ranks=4, status="interrupted", error="after iteration 40 of 100", step_ns=step(12.5))
    failed = run("b", ranks=8, status="error", error="CUDA error")
    table = runs.build((stopped, failed))
    text = files.as_markdown(table)
    assert "12.5 ms" in text
    assert any("interrupted" in note and "the steps before" in note for note in table.notes)
    assert [row.failure is None for row in table.rows] == [True, False]

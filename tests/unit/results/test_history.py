"""Runs of one matrix over time, from evidence made by hand: order, missing cells, the planted change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests import bench_evidence
from tests.described import drawn, values
from tests.evidence import MS
from tests.pages import diagnosis

from stepscope.core.errors import Unavailable
from stepscope.records.nouns import Measured
from stepscope.report.page import page_text
from stepscope.report.views.runs import history_table
from stepscope.results.evidence import Evidence, Source
from stepscope.results.history import history

LEVELS = (1.0, 1.01, 0.99, 1.0, 1.02, 1.25, 1.24, 1.26, 1.25, 1.27)


def runs(levels: tuple[float, ...] = LEVELS, *, cells: int = 2) -> Evidence:
    """A run folder a level, given newest first; cell c takes (c + 1) x 10 ms x the level."""
    one = bench_evidence.bench(*(bench_evidence.made(f"cell-{c}", world_size=2 + c) for c in range(cells)))
    sources, found = [], []
    for number, level in reversed(list(enumerate(levels))):
        path = Path(f"results/nightly-{number + 1}")
        sources.append(Source(path=path, kind="bench", created=f"2026-11-{number + 1:02}T03:00:00Z"))
        for at, cell in enumerate(one.cells):
            value = (at + 1) * 10 * MS * level * (1 + 0.001 * (number % 3))
            run = replace(
                cell.run, run_id=f"{path.name}/{cell.cell_id}", source=str(path), step_ns=Measured(value=value, n=40)
            )
            found.append(replace(cell, run=run))
    return Evidence(sources=tuple(sources), cells=tuple(found), runs=tuple(cell.run for cell in found))


def test_a_history_is_in_order_of_time_and_names_the_planted_change() -> None:
    found = history(runs())
    assert [run.name for run in found.runs] == [f"nightly-{n}" for n in range(1, 11)]
    assert found.common.since == 5
    assert [cell.since for cell in found.cells] == [5, 5]
    table = history_table(found)
    assert len(table.rows) == 2
    assert table.rows[0].values[-1].text.startswith("+25% since nightly-6 (2026-11-06), p = ")
    assert "+25% since nightly-6" in table.footnotes[0]


def test_five_runs_claim_nothing_and_two_or_several_machines_are_no_history() -> None:
    found = history(runs(LEVELS[3:8]))
    assert isinstance(found.common.change, Unavailable)
    assert "not tested: 5 runs" in history_table(found).rows[0].values[-1].text
    assert history(runs(LEVELS[:2])) is None
    given = runs()
    other = replace(given.cells[0], run=replace(given.cells[0].run, hardware="another machine"))
    assert history(replace(given, cells=(other, *given.cells[1:]))) is None


def test_a_cell_that_one_run_lacks_keeps_its_place() -> None:
    given = runs()
    less = tuple(cell for cell in given.cells if cell.run.run_id != "nightly-3/cell-1")
    found = history(replace(given, cells=less))
    assert found.cells[1].step_ns[2] is None
    assert found.cells[1].since == 5


def test_the_chart_marks_the_change_and_the_page_has_both() -> None:
    found = history(runs())
    (chart,) = drawn("history", history=found)
    assert values(chart, "rule") == [{"x": 5.5}]
    assert "since nightly-6 (2026-11-06)" in chart.caption
    text = page_text(title="nightly", evidence=runs(), diagnosis=diagnosis())
    assert "Runs over time" in text
    assert "25% since nightly-6" in text

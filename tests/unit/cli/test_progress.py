"""The log lines and the live table of a run: cells that differ in a swept setting alone do not look the same."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from tests.unit.cells import cell_spec

from stepscope.cli import progress
from stepscope.matrix.work import CellEnded, CellMoved, GroupStarted, RunStarted
from stepscope.records.cell import CellStatus

CELLS = tuple(cell_spec(cell_id=f"mlp-naive-w2-{seed}", seed=seed) for seed in (1, 2))
LABELS = ["mlp tiny, naive seed=1, 2 ranks, fp32", "mlp tiny, naive seed=2, 2 ranks, fp32"]


@pytest.fixture
def console(monkeypatch: pytest.MonkeyPatch) -> Console:
    shown = Console(file=io.StringIO(), width=70, height=20, force_terminal=True, color_system=None)
    monkeypatch.setattr(progress, "err", lambda: shown)
    return shown


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def started(*, to_run: int = 2, remeasured: int = 0) -> RunStarted:
    return RunStarted(run_dir="run", cells=CELLS, kept=(), to_run=to_run, remeasured=remeasured)


def test_log_lines_tell_the_cells_apart(console: Console) -> None:
    show = progress.LineProgress()
    show(started())
    for cell in CELLS:
        show(CellMoved(cell=cell, phase="measure", step=1))
        show(CellEnded(cell=cell, status=CellStatus(cell_id=cell.cell_id, status="ok", wall_ns=10**9)))
    said = text_of(console)
    for number, label in enumerate(LABELS, start=1):
        assert f"{label}: measure" in said
        assert f"[{number}/2] {label}: ok in 1.00 s" in said


def test_cells_that_had_not_begun_when_the_run_was_stopped_are_counted_not_listed(console: Console) -> None:
    with progress.LineProgress() as show:
        show(started())
        show(CellMoved(cell=CELLS[0], phase="measure", step=1))
        for cell in CELLS:
            show(CellEnded(cell=cell, status=CellStatus(cell_id=cell.cell_id, status="interrupted", reason="stopped")))
    said = text_of(console)
    assert f"{LABELS[0]}: interrupted: stopped" in said
    assert LABELS[1] not in said
    assert "1 cell not begun" in said
    assert " left" not in said


def test_the_live_table_tells_the_cells_apart_and_keeps_them_whole_when_narrow(console: Console) -> None:
    show = progress.LiveProgress()
    show(started())
    show(CellMoved(cell=CELLS[1], phase="measure with a long name", step=123456))
    console.print(show._table())
    assert all(label in text_of(console) for label in LABELS)


@pytest.mark.parametrize(
    ("number", "said"),
    [(1, "1 cell measured again: it has no trace"), (2, "2 cells measured again: they have no trace")],
)
def test_what_is_measured_again_for_a_trace_is_said_before_it_runs(console: Console, number: int, said: str) -> None:
    progress.LineProgress()(started(to_run=number, remeasured=number))
    assert f"run folder run: {number} cell{'s' if number > 1 else ''} to run; {said}\n" in text_of(console)
    progress.LiveProgress()(started(remeasured=number))
    assert text_of(console).count(said) == 2


def test_one_rank_for_one_cell_is_singular(console: Console) -> None:
    progress.LineProgress()(GroupStarted(group_id="001-w1-gloo", world_size=1, cells=1))
    assert "starting 1 rank for 1 cell (001-w1-gloo)" in text_of(console)

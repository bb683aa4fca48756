from __future__ import annotations

from pathlib import Path
from typing import Any

from stepscope.records.cell import CellStatus
from stepscope.report.summary import write_summary
from stepscope.results.runs import build_runs
from stepscope.store.layout import RunLayout


def test_a_run_folder_without_run_or_environment_file_still_gets_its_summary(fakes: Any, tmp_path: Path) -> None:
    layout, cell = RunLayout(tmp_path / "lonely"), fakes.single("a")
    fakes.write_cell(layout, cell, ranks=[fakes.series([1_000_000] * 8)])
    write_summary(layout, build_runs(layout, [cell], plans={}))
    text = layout.summary_md.read_text()
    assert text.startswith("# Results: lonely\n")
    assert "environment: not recorded" in text


def test_a_damaged_status_is_a_failed_cell_not_a_crash(fakes: Any, tmp_path: Path) -> None:
    layout, cell = RunLayout(tmp_path), fakes.single("a")
    fakes.write_cell(layout, cell, ranks=[fakes.series([1_000_000] * 8)])
    layout.cell("a").status.write_bytes(b"{torn")
    rows = build_runs(layout, [cell], plans={})
    write_summary(layout, rows)
    assert rows[0].status == "error"
    assert "status unreadable" in layout.summary_md.read_text()


def test_a_failed_cell_points_to_the_files_that_are_there(fakes: Any, tmp_path: Path) -> None:
    layout, cell = RunLayout(tmp_path), fakes.spec("a")
    status = CellStatus(cell_id="a", status="error", reason="boom", failing_rank=1, group_id="g1")
    fakes.write_cell(layout, cell, status=status)
    layout.cell("a").error(1).write_text("{}")
    write_summary(layout, build_runs(layout, [cell], plans={}))
    text = layout.summary_md.read_text()
    assert "look in `cells/a/status.json`, `cells/a/error-00001.json`\n" in text  # no launcher log was left

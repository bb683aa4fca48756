"""The tree of a verdict on a terminal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.diaries import simulate, write_record

from stepscope.cli.findings import show_screen
from stepscope.diagnose.jobs import judge_job
from stepscope.diagnose.screen import of_job
from stepscope.records.parts import TITLES
from stepscope.report.render.screen import WIDEST


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_no_line_is_too_wide_nor_cut_inside_a_number(
    ranks: int, columns: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the ranks of a part have no room, the least and the most are named, else the most."""
    monkeypatch.setattr("stepscope.cli.findings.out", lambda: SimpleNamespace(width=columns))
    simulate(write_record(tmp_path / "job"), ranks=ranks, steps=100, seed=3, transfer_ms=6.0, slow={1: 1.5})
    judged = judge_job(tmp_path / "job")
    assert judged is not None
    show_screen(of_job(judged.verdict))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= min(columns, WIDEST)
    whole = next(at for at, line in enumerate(lines) if line.startswith("  a step"))
    names = tuple(TITLES.values())
    tree = lines[whole + 1 : lines.index("", whole)]
    assert all(line.strip().startswith(names) for line in tree)
    assert len(tree) >= 8
    assert [line for line in tree if not line.endswith((" ms", " us", " ns", " s", "%", judged.verdict.kind))] == []
    assert any("rank 1 " in line for line in tree)

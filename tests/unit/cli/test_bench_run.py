"""What ``bench`` says at its end about the files it left."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.cli.bench_run import _of_traces
from stepscope.cli.main import main
from stepscope.store.layout import RunLayout


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (("a",), "2 files of 1 cell, 2.00 kB: stepscope trace '{run}'"),
        (("a", "b"), "4 files of 2 cells, 4.00 kB: stepscope trace '{run}' --cell ID"),
    ],
)
def test_traces_are_counted_and_the_command_that_reads_them_is_named(
    tmp_path: Path, cells: tuple[str, ...], said: str
) -> None:
    layout = RunLayout(tmp_path / "my run")
    for cell in (*cells, "untraced"):
        layout.cell(cell).root.mkdir(parents=True)
    for cell in cells:
        layout.cell(cell).traces.mkdir()
        for rank in (0, 1):
            layout.cell(cell).trace(rank).write_bytes(bytes(1000))
    assert _of_traces(layout, layout.trace_files()) == said.format(run=layout.root)


def test_a_plan_of_a_sweep_alone_has_no_cells_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        main(["bench", "--preset", "suite", "--only", "comm", "--plan"])
    assert end.value.code == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("collectives: all_reduce")

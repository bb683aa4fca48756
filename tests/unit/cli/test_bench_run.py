"""What ``bench`` says at its end about the files it left."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.cli.bench_run import _of_traces
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

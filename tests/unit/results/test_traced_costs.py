"""Collectives of traces as rows of a sweep."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_builder import build, write_job

from stepscope.core.errors import DataError
from stepscope.results.comm_costs import SECTIONS, machine_of_traces, rows_of_traces
from stepscope.traces.job import analyse_job
from stepscope.traces.sections import Wanted


def test_a_row_a_size_with_the_median_transfer_of_several_ranks(tmp_path: Path) -> None:
    write_job(build(shape="ddp", layers=4, world=2, steps=3, transfer_ns=5_000_000, late={1: 700_000}), tmp_path)
    summary = analyse_job(tmp_path, Wanted(sections=SECTIONS))
    rows = rows_of_traces(summary, name="job")
    assert sum(row.iterations or 0 for row in rows) == 12
    for row in rows:
        assert (row.op, row.dtype, row.world_size, row.status) == ("all_reduce", "fp32", 2, "ok")
        assert row.time_ns_median == pytest.approx(5_000_000, rel=0.01)  # without the wait for rank 1
    assert machine_of_traces(summary).gpus == ()
    write_job(build(shape="ddp", layers=2, world=2, steps=2), tmp_path)
    next(iter(sorted(tmp_path.glob("*rank*1*")))).unlink()
    with pytest.raises(DataError, match="no transfer") as caught:
        rows_of_traces(analyse_job(tmp_path), name="job")
    assert "one rank" in (caught.value.why or "")

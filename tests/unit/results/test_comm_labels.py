"""Collectives of several logs in one report: each log keeps a line, a table and a row of its own."""

from __future__ import annotations

from pathlib import Path

from tests.comm_rows import MIB, collective, sweep
from tests.described import drawn, names, values

from stepscope.records.comm import CommRow
from stepscope.report.views import comm
from stepscope.results.comm_facts import by_sweep
from stepscope.results.evidence import Evidence, Source
from stepscope.results.joining import join


def logs() -> tuple[CommRow, ...]:
    """The same sweep on two machines, as the importer of nccl-tests reads it."""
    return tuple(
        row
        for name, rate in (("a100.log", 2e9), ("h100.log", 4e9))
        for row in sweep(world_size=8, rate=rate, cell_id=f"{name}, out of place")
    )


def test_a_chart_has_a_line_for_each_log() -> None:
    (chart,) = drawn("comm_busbw", rows=logs())
    assert names(chart) == ["a100.log", "h100.log"]
    for name in names(chart):
        sizes = [point["size"] for point in values(chart, "line") if point["series"] == name]
        assert sizes == sorted(set(sizes))


def test_tables_keep_logs_apart() -> None:
    overview = comm.overview_table(logs())
    assert len(overview.rows) == 2
    assert [c.key for c in overview.columns if c.role == "group"] == ["source", "world_size", "device"]
    assert {row.values[0].text for row in comm.comm_table(logs()).rows} == {"a100.log", "h100.log"}
    assert "a100.log" in " ".join(comm.comm_table(logs()).footnotes)


def test_means_are_not_called_medians() -> None:
    unknown = {f"time_ns_{name}": None for name in ("median", "low", "high")}
    said = " ".join(comm.comm_table([collective(MIB, 9.0, rank_spread=None, **unknown)]).footnotes)
    assert "median" not in said
    assert "mean over the calls" in said


def test_rules_see_each_log_and_each_run_alone() -> None:
    found = by_sweep(logs())
    assert [name for name, _ in found] == [
        "all_reduce on 8 ranks, a100.log",
        "all_reduce on 8 ranks, h100.log",
    ]
    for _, rows in found:
        sizes = [row.size_bytes for row in rows]
        assert sizes == sorted(set(sizes))
    days = [
        Evidence(sources=(Source(path=Path(name), kind="comm"),), comm=tuple(sweep(world_size=8, rate=rate)))
        for name, rate in (("monday", 2e9), ("friday", 4e9))
    ]
    found = by_sweep(join(days).comm)
    assert [name for name, _ in found] == ["all_reduce on 8 ranks, monday", "all_reduce on 8 ranks, friday"]

"""Sharded units read back from generated traces: names, passes, sizes, prefetch, exposed time.

What groups carry: by their descriptions in several frameworks, else by what they do.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.sharded_jobs import experts, fsdp, pipeline, traces_of

from stepscope.records.trace_rules import ROOT, ShardedUnits
from stepscope.report import trace_sections
from stepscope.results.evidence import Evidence

TIMES = {"forward_ns": 2_000_000, "backward_ns": 4_000_000, "steps": 2, "world": 2}


def units(folder: Path, **options: Any) -> ShardedUnits:
    return traces_of(fsdp(**(TIMES | options)), folder).traces[0].summary.ranks[1].units


def test_on_cpus_prefetch_is_not_judged(tmp_path: Path) -> None:
    found = units(tmp_path, device="gloo")
    assert found.source == "cpu_spans"
    assert all(c.early is None for c in found.calls)


def test_the_table_shows_a_unit_a_row(tmp_path: Path) -> None:
    table = trace_sections.table(traces_of(fsdp(units=3, **TIMES), tmp_path).traces[0].summary, "units")
    rows = {row.values[0].text: [v.text for v in row.values] for row in table.rows}
    assert list(rows) == [ROOT, "layers.0", "layers.1", "layers.2"]
    assert rows["layers.1"][1:7] == ["64.0 MiB", "2", "711 us", "711 us", "711 us", "8 of 8"]
    assert rows["layers.1"][7].startswith("0 ns")


def kinds(evidence: Evidence) -> set[tuple[str, str]]:
    return {(g.kind, g.kind_source) for p in evidence.traces[0].summary.ranks for g in p.groups}


def test_exchanges_and_messages_alone_are_experts_and_stages(tmp_path: Path) -> None:
    assert kinds(traces_of(experts(group="7"), tmp_path / "a")) == {("ep", "operations")}
    assert kinds(traces_of(pipeline(), tmp_path / "b")) == {("pp", "operations")}


def test_the_table_of_groups_says_it(tmp_path: Path) -> None:
    table = trace_sections.table(traces_of(fsdp(group="7"), tmp_path).traces[0].summary, "groups")
    carries = [c.key for c in table.columns].index("kind")
    assert [row.values[carries].text for row in table.rows] == ["dp (by operations)"]

"""Sharded units read back from generated traces: names, passes, sizes, prefetch, exposed time.

What groups carry: by their descriptions in several frameworks, else by what they do.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.sharded_jobs import experts, fsdp, pipeline, traces_of

from stepscope.records.trace_collectives import CollectiveGroup
from stepscope.records.trace_rules import ROOT, ShardedUnits
from stepscope.report import trace_sections
from stepscope.results.evidence import Evidence
from stepscope.traces.groups import kind_by_name

TIMES = {"forward_ns": 2_000_000, "backward_ns": 4_000_000, "steps": 2, "world": 2}


def units(folder: Path, **options: Any) -> ShardedUnits:
    return traces_of(fsdp(**(TIMES | options)), folder).traces[0].summary.ranks[1].units


def test_units_are_those_that_fsdp2_names(tmp_path: Path) -> None:
    found = units(tmp_path, units=3)
    assert (found.wrapper, found.named_by, found.source) == ("fsdp2", "annotation", "device")
    assert (found.reserved_bytes, found.capacity_bytes) == (1 << 30, 80 << 30)
    calls = Counter((c.unit, c.phase, c.op) for c in found.calls)
    assert calls == {
        (ROOT, "forward", "all_gather"): 2,
        (ROOT, "backward", "reduce_scatter"): 2,
        **{
            (f"layers.{i}", phase, op): 2
            for i in range(3)
            for phase, op in (("forward", "all_gather"), ("backward", "all_gather"), ("backward", "reduce_scatter"))
        },
    }
    assert {c.size_bytes for c in found.calls if c.unit == "layers.1"} == {64 << 20}


@pytest.mark.parametrize("keep", [False, True])
def test_without_names_the_backward_pass_visits_the_units_in_reverse(tmp_path: Path, keep: bool) -> None:
    named, numbered = (units(tmp_path / str(a), units=4, annotated=a, keep=keep) for a in (True, False))
    assert (numbered.wrapper, numbered.named_by) == ("unknown", "order")
    same = {ROOT: "unit 0", **{f"layers.{i}": f"unit {i + 1}" for i in range(4)}}
    assert [same[c.unit or ""] for c in named.calls] == [c.unit for c in numbered.calls]
    assert [c.phase for c in named.calls] == [c.phase for c in numbered.calls]


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


@pytest.mark.parametrize(
    ("description", "kind"),
    [
        ("mesh_dp", "dp"), ("mesh_dp_shard", "dp"), ("mesh_dp_shard_cp", "dp"), ("mesh_fsdp", "dp"), ("mesh_tp", "tp"),
        ("mesh_pp", "pp"), ("mesh_ep", "ep"), ("mesh_cp", "cp"), ("default_pg", ""), ("undefined", ""), ("", ""),
        ("DATA_PARALLEL_GROUP", "dp"), ("DATA_PARALLEL_GROUP_WITH_CP", "dp"), ("EXPERT_DATA_PARALLEL_GROUP", "dp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"), ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"), ("EXPERT_TENSOR_PARALLEL_GROUP", "tp"), ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("spare", ""), ("step_sync", ""), ("mapping", ""),
    ],
)  # fmt: skip
def test_a_description_says_what_a_group_carries(description: str, kind: str) -> None:
    assert kind_by_name(CollectiveGroup(name="7", description=description, size=2, ranks=None)) == kind


def kinds(evidence: Evidence) -> set[tuple[str, str]]:
    return {(g.kind, g.kind_source) for p in evidence.traces[0].summary.ranks for g in p.groups}


def test_exchanges_and_messages_alone_are_experts_and_stages(tmp_path: Path) -> None:
    assert kinds(traces_of(experts(group="7"), tmp_path / "a")) == {("ep", "operations")}
    assert kinds(traces_of(pipeline(), tmp_path / "b")) == {("pp", "operations")}


def test_the_table_of_groups_says_it(tmp_path: Path) -> None:
    table = trace_sections.table(traces_of(fsdp(group="7"), tmp_path).traces[0].summary, "groups")
    carries = [c.key for c in table.columns].index("kind")
    assert [row.values[carries].text for row in table.rows] == ["dp (by operations)"]

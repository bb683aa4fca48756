"""What groups carry: by their descriptions in several frameworks, else by what they do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.sharded_jobs import experts, fsdp, pipeline, tensor, traces_of
from tests.trace_evidence import generated

from stepscope.records.trace_collectives import CollectiveGroup
from stepscope.report import trace_sections
from stepscope.results.evidence import Evidence
from stepscope.traces.groups import kind_by_name, kind_by_operations


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


@pytest.mark.parametrize(
    ("plan", "kind"),
    [({"shape": "ddp"}, "dp"), ({"shape": "naive"}, "dp"), ({"shape": "fsdp"}, "dp"), ({"shape": "tensor"}, "tp")],
)
def test_without_a_description_operations_say_it(tmp_path: Path, plan: dict[str, Any], kind: str) -> None:
    assert kinds(generated(tmp_path, world=4, **plan)) == {(kind, "operations")}


def test_exchanges_and_messages_alone_are_experts_and_stages(tmp_path: Path) -> None:
    assert kinds(traces_of(experts(group="7"), tmp_path / "a")) == {("ep", "operations")}
    assert kinds(traces_of(pipeline(), tmp_path / "b")) == {("pp", "operations")}


def test_the_table_of_groups_says_it(tmp_path: Path) -> None:
    table = trace_sections.table(traces_of(fsdp(group="7"), tmp_path).traces[0].summary, "groups")
    carries = [c.key for c in table.columns].index("kind")
    assert [row.values[carries].text for row in table.rows] == ["dp (by operations)"]


def test_scores_gathered_beside_reductions_of_the_forward_pass_are_tensor_parallel(tmp_path: Path) -> None:
    summary = traces_of(tensor(pairs=((0, 1, 2, 3),), kind="7"), tmp_path).traces[0].summary
    communication = summary.ranks[0].communication
    assert communication is not None
    calls = list(communication.collectives)
    forward = [i % 8 < 4 for i in range(len(calls))]
    gathers = [replace(c, op="all_gather") if i % 8 == 3 else c for i, c in enumerate(calls)]
    assert kind_by_operations(gathers, forward) == "tp"
    assert kind_by_operations(gathers, [False] * len(calls)) == ""

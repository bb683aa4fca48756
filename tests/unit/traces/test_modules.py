"""Time by module: what runs in a module is the innermost one's, what autograd runs is the differentiated operator's.

Annotations: host time and the device work launched inside them.

Tensor parallelism read back layer by layer: named by the plan where there is one, else numbered.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hand_events import Row, device_mark, mark, op, trace
from tests.sharded_jobs import folder_of, fsdp, tensor, traces_of
from tests.trace_evidence import generated

from stepscope.core.errors import Unavailable
from stepscope.examples.training_job import SimulatedJob
from stepscope.records.trace_rules import DividedLayers
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.trace_work import AnnotationRow, ModuleRow
from stepscope.report import trace_sections
from stepscope.traces.events import MemoryInstants, RankTrace, RankView
from stepscope.traces.job import analyse_job
from stepscope.traces.modules import annotation_rows, layer_of, module_rows
from stepscope.traces.sections import Wanted

AUTOGRAD = "autograd::engine::evaluate_function: AddmmBackward0"


def rows_of(made: RankTrace) -> dict[str, ModuleRow]:
    found = module_rows(RankView(made))
    return {row.module: row for row in found}


def pass_of(*more: Row) -> list[Row]:
    """model calls a and b; backward of b, then of a, on autograd's thread."""
    return [
        mark("module: model", 0, 100), mark("module: a", 10, 40), mark("module: b", 50, 90),
        op("aten::addmm", 12, 32, sequence=5), op("aten::addmm", 55, 85, sequence=6), op("aten::add", 92, 96, sequence=7),
        op(AUTOGRAD, 200, 260, thread="autograd", sequence=6, forward_thread=1),
        op("aten::mm", 205, 255, thread="autograd"),
        op(AUTOGRAD, 260, 300, thread="autograd", sequence=5, forward_thread=1),
        op("aten::zero_", 400, 440), *more,
    ]  # fmt: skip


def test_on_a_cpu_operators_belong_to_the_innermost_module_and_backward_to_the_operators() -> None:
    found = rows_of(trace(*pass_of()))
    assert {name: (row.forward_ns, row.backward_ns) for name, row in found.items()} == {
        "b": (30, 60),
        "a": (20, 40),
        "model": (4, 0),
    }
    assert [row.comm_ns for row in found.values()] == [None] * 3
    assert [row.kept_bytes for row in found.values()] == [None] * 3


def test_memory_is_what_a_module_allocates_less_what_it_releases() -> None:
    times, sizes = [15, 60, 80, 95], [100, 50, -20, -30]
    memory = MemoryInstants(
        ts_ns=np.array(times), size_bytes=np.array(sizes), allocated_bytes=np.cumsum(sizes), reserved_bytes=np.zeros(4, int),
        device_type=np.zeros(4, np.int32), device=np.full(4, -1, np.int32),
    )  # fmt: skip
    found = rows_of(trace(*pass_of(), memory=memory))
    assert {name: row.kept_bytes for name, row in found.items()} == {"a": 100, "b": 30, "model": -30}


def test_without_ranges_of_modules_the_reason_names_the_option() -> None:
    made = trace(op("aten::mm", 0, 5))
    found = module_rows(RankView(made))
    assert isinstance(found, Unavailable)
    assert "--modules" in found.reason


def rows(made: RankTrace) -> dict[str, AnnotationRow]:
    found = annotation_rows(RankView(made))
    return {r.name: r for r in found}


def test_numbered_steps_are_one_row() -> None:
    found = rows(trace(mark("ProfilerStep#3", 0, 10), mark("ProfilerStep#4", 10, 30)))
    assert (found["ProfilerStep#"].calls, found["ProfilerStep#"].host_ns) == (2, 30)


def test_the_profilers_own_device_span_is_shown_where_it_wrote_one() -> None:
    found = rows(trace(mark("x", 0, 50), mark("y", 60, 70), device_mark("x", 10, 90)))
    assert (found["x"].device_span_ns, found["y"].device_span_ns) == (80, None)


def layers(job: SimulatedJob, folder: Path) -> DividedLayers:
    return traces_of(job, folder).traces[0].summary.ranks[1].layers


def with_plan(
    job: SimulatedJob, folder: Path, modules: list[str], *more: dict[str, Any], unnamed: bool = False
) -> TraceSummary:
    """The job with the plan in its traces: an all-reduce of each module in both passes."""
    op = {"op": "all_reduce", "numel": job.plan.elements, "dtype": "float32", "group": "tp"}
    plan = [{**op, "module": module} for module in (*modules, *reversed(modules))] + list(more)
    for file in folder_of(job, folder).iterdir():
        trace = json.loads(file.read_text()) | {"stepscope.communication_plan": plan}
        for event in trace["traceEvents"] if unnamed else ():
            for name in [n for n in event.get("args", {}) if n.startswith("Process Group")]:
                del event["args"][name]
        file.write_text(json.dumps(trace))
    return analyse_job(folder, Wanted())


def test_without_a_plan_calls_are_numbered_and_the_backward_pass_reverses_them(tmp_path: Path) -> None:
    found = layers(tensor(layers=3, steps=2), tmp_path)
    assert (found.named_by, found.group_size) == ("order", 2)
    assert [(c.layer, c.phase) for c in found.calls] == 2 * [
        *((f"call {i}", "forward") for i in (0, 1, 2)),
        *((f"call {i}", "backward") for i in (2, 1, 0)),
    ]
    assert {c.exposed_ns for c in found.calls} == {150_000}


def test_the_plan_names_the_layers_and_the_table_sums_them(tmp_path: Path) -> None:
    modules = ["tokens", "blocks.0.attention_out", "blocks.0.feedforward_out"]
    summary = with_plan(tensor(layers=3), tmp_path / "job", modules)
    assert {p.layers.named_by for p in summary.ranks if p.layers} == {"plan"}
    table = trace_sections.table(summary, "layers")
    rows = [[v.text for v in row.values][:5] for row in table.rows]
    assert rows == [["tokens", "2", "2.00 MiB", "150 us", "150 us"], ["blocks.0", "4", "4.00 MiB", "300 us", "300 us"]]
    assert table.footnotes[0].startswith("groups of 2 ranks; figures per step")
    assert "all layers together 4" in table.footnotes[1]


def test_where_groups_are_not_recorded_the_plan_tells_them_apart(tmp_path: Path) -> None:
    """As on gloo: the gradients' all-reduce of the data-parallel group is as large, and the plan lists it last."""
    modules = ["tokens", "blocks.0.attention_out", "blocks.0.feedforward_out"]
    other = {"op": "all_reduce", "numel": 1 << 18, "dtype": "float32", "group": "dp", "module": ""}
    summary = with_plan(tensor(layers=3, kind="mesh_tp"), tmp_path / "job", modules, other, unnamed=True)
    layers = summary.ranks[0].layers
    assert [c.layer for c in layers.calls[:6]] == ["tokens", "blocks.0", "blocks.0", "blocks.0", "blocks.0", "tokens"]
    assert len(layers.calls) == 6 * 3


def test_a_plan_that_does_not_fit_names_nothing(tmp_path: Path) -> None:
    summary = with_plan(tensor(layers=3), tmp_path / "job", ["tokens"])
    assert {p.layers.named_by for p in summary.ranks if p.layers} == {"order"}


@pytest.mark.parametrize(
    ("module", "layer"),
    [
        ("blocks.3.attention_out", "blocks.3"),
        ("model.layers.12.mlp", "model.layers.12"),
        ("head", "head"),
        ("layers.4", "layers.4"),
    ],
)
def test_a_layer_is_the_module_of_a_list(module: str, layer: str) -> None:
    assert layer_of(module) == layer


def test_other_groups_have_no_layers(tmp_path: Path) -> None:
    for evidence in (traces_of(fsdp(world=2), tmp_path / "fsdp"), generated(tmp_path / "ddp", world=2)):
        summary = evidence.traces[0].summary
        assert all(p.layers is None for p in summary.ranks)
        assert trace_sections.table(summary, "layers").rows == ()

"""A device whose work is not read, or was not recorded, leaves the verdict unknown: its host's operators are no answer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.hand_events import Row, mark, op, trace
from tests.trace_builder import build, write_job

from stepscope.api.trace_diff import paired
from stepscope.core.errors import DataError
from stepscope.diagnose.engine import diagnose_traces
from stepscope.records.trace_summary import TraceSummary
from stepscope.report.views import trace_budget
from stepscope.traces.events import TraceMeta
from stepscope.traces.job import analyse_job
from stepscope.traces.rank_pass import analyse


def renamed(folder: Path, cats: dict[str, str], **plan: object) -> Path:
    """A generated job whose device categories are spelled otherwise; an empty spelling leaves ``cat`` out."""
    for file in write_job(build(world=2, **plan), folder).iterdir():
        text = file.read_text()
        for old, new in cats.items():
            text = text.replace(f'"cat": "{old}", ', f'"cat": "{new}", ' if new else "")
        file.write_text(text)
    return folder


def nothing_claimed(summary: TraceSummary, why: str) -> None:
    assert [v.verdict.kind for v in summary.verdicts] == ["unknown", "unknown"]
    assert all(why in v.verdict.text for v in summary.verdicts)
    assert [p.budget for p in summary.ranks] == [None, None]
    said = diagnose_traces(summary)
    assert [(finding.rule, finding.ranks) for finding in said.findings] == [("unfit-trace", (0, 1))]
    assert why in said.findings[0].title
    assert any(why in skipped.reason for skipped in said.skipped)
    assert trace_budget.budget_table(summary).rows == ()


@pytest.mark.parametrize("category", ["mtia_insight", "privateuse1_kernel", "hpu_op", "npu_kernel"])
def test_a_device_of_unknown_categories_is_said_not_to_be_read(tmp_path: Path, category: str) -> None:
    cats = {"kernel": category, "gpu_memcpy": category, "cuda_runtime": "mtia_runtime"}
    summary = analyse_job(renamed(tmp_path, cats))
    nothing_claimed(summary, f"does not know its event categories: {category} (")


def test_a_process_that_is_labelled_as_a_device_is_one(tmp_path: Path) -> None:
    """Ascend's traces leave ``cat`` out; the process says what it is."""
    folder = renamed(tmp_path, {"kernel": "", "gpu_memcpy": "", "cuda_runtime": "other_runtime"})
    for file in folder.iterdir():
        text = file.read_text()
        label = '{"ph": "M", "name": "process_labels", "pid": 0, "tid": 0, "ts": 0, "args": {"labels": "NPU 0"}},\n'
        file.write_text(text.replace('"traceEvents": [\n', '"traceEvents": [\n' + label, 1))
    nothing_claimed(analyse_job(folder), "no category, process 'NPU 0'")


def test_launches_without_any_kernel_are_a_device_that_was_not_recorded(tmp_path: Path) -> None:
    folder = write_job(build(world=2), tmp_path)
    for file in folder.iterdir():
        events = [e for e in file.read_text().split("},\n") if '"cat": "kernel"' not in e and '"cat": "gpu_' not in e]
        file.write_text("},\n".join(events))
    nothing_claimed(analyse_job(folder), "the device's work was not recorded")


@pytest.mark.parametrize("launches", [True, False])
def test_a_file_that_stops_before_any_of_the_devices_work_is_no_job_of_the_host(tmp_path: Path, launches: bool) -> None:
    folder = write_job(build(world=2, steps=2), tmp_path)
    left_out = ('"cat": "kernel"', '"cat": "gpu_', *(() if launches else ('"cat": "cuda_', '"name": "nccl:')))
    for file in folder.iterdir():
        text = file.read_text().replace('"traceEvents"', '"deviceProperties": [{"name": "H100"}], "traceEvents"', 1)
        parts = [e for e in text.split("},\n") if not any(mark in e for mark in left_out)]
        file.write_text("},\n".join(parts[: 3 * len(parts) // 4]))
    summary = analyse_job(folder)
    assert [(fact.kind, fact.rank) for fact in summary.quality] == [("cut-before", 0), ("cut-before", 1)]
    assert [p.budget for p in summary.ranks] == [None, None]
    assert {f.rule for f in diagnose_traces(summary).findings} <= {"unfit-trace"}


def test_a_device_that_is_read_and_another_category_beside_it_stay_as_they_are(tmp_path: Path) -> None:
    folder = renamed(tmp_path, {"gpu_memcpy": "mtia_insight"})
    summary = analyse_job(folder)
    assert all(p.budget is not None and p.budget.source == "device" for p in summary.ranks)


def test_a_difference_of_unread_devices_says_why_there_is_none(tmp_path: Path) -> None:
    cats = {"kernel": "npu_kernel", "gpu_memcpy": "npu_kernel", "cuda_runtime": "mtia_runtime"}
    unread = analyse_job(renamed(tmp_path / "new", cats))
    read = analyse_job(write_job(build(world=2), tmp_path / "old"))
    for before, after, side in ((read, unread, "new"), (unread, read, "old"), (unread, unread, "old")):
        with pytest.raises(DataError, match=f"the device of {side} was not read") as refused:
            paired(before, after, names=("old", "new"))
        assert "npu_kernel" in (refused.value.why or "")


@pytest.mark.parametrize(
    ("rows", "group", "count"),
    [
        ((op("aten::cudnn_convolution", 0, 40), op("aten::relu", 50, 60)), None, 1),
        ((op("aten::_flash_attention_forward", 0, 40), op("aten::_flash_attention_backward", 50, 60)), None, 2),
        ((op("aten::pin_memory", 0, 40), op("aten::mm", 50, 60)), None, 1),
        ((op("triton_poi_fused_add_0", 0, 40), op("triton_red_fused_1", 50, 60)), None, 2),
        ((op("c10d::allreduce_", 0, 40), mark("nccl:all_reduce", 10, 30)), None, 1),
        ((op("c10d::allreduce_", 0, 40), op("aten::mm", 50, 60)), "cpu:gloo,cuda:nccl", 1),
    ],
)
def test_operators_of_devices_alone_show_that_the_device_was_not_recorded(
    rows: tuple[Row, ...], group: str | None, count: int
) -> None:
    recorded = trace(*rows)
    summary = analyse(replace(recorded, meta=TraceMeta(backend=group)))
    assert [(fact.kind, fact.count) for fact in summary.quality] == [("not-recorded", count)]
    assert summary.budget is None


def test_annotations_alone_are_nothing_to_judge() -> None:
    summary = analyse(trace(mark("ProfilerStep#1", 0, 90), mark("forward", 10, 60)))
    assert [(fact.kind, fact.count, fact.matters) for fact in summary.quality] == [("only-annotations", 2, True)]
    assert summary.budget is None
    assert analyse(trace(mark("forward", 10, 60), op("aten::mm", 20, 50))).quality == ()


@pytest.mark.parametrize("backend", [None, "gloo", "cpu:gloo,cuda:nccl"])
def test_operators_of_the_cpu_are_a_job_of_the_cpu(backend: str | None) -> None:
    rows = (op("aten::mkldnn_convolution", 0, 40), op("aten::_scaled_dot_product_flash_attention_for_cpu", 50, 90))
    summary = analyse(replace(trace(*rows), meta=TraceMeta(backend=backend)))
    assert summary.quality == ()
    assert summary.budget is not None

"""A job as one object: what it answers, what it reads when, what it says where it has no answer."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.commands import Ran
from tests.trace_builder import build, write_job

import stepscope
from stepscope.core.errors import DataError, UsageError


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two ranks, of which one computes longer, as traces."""
    return write_job(build(world=2, steps=3), tmp_path_factory.mktemp("job"))


@pytest.fixture(scope="module")
def job(traces: Path) -> stepscope.Job:
    return stepscope.open(traces)


def test_opening_reads_nothing() -> None:
    assert stepscope.open("nowhere").paths == (Path("nowhere"),)
    with pytest.raises(DataError):
        _ = stepscope.open("nowhere").verdict
    with pytest.raises(UsageError):
        stepscope.open()


def test_the_answers_are_those_of_the_commands(ran: Ran, job: stepscope.Job, traces: Path) -> None:
    diagnosed = json.loads(ran("diagnose", str(traces), "--json").out)
    of_the_run = {"created": None, "command": None}
    assert json.loads(json.dumps(job.to_json())) | of_the_run == diagnosed | of_the_run
    traced = json.loads(ran("trace", str(traces), "--json").out)
    assert job.table("budget")["compute"] == [rank["compute_ns"] for rank in traced["ranks"]]
    assert len(job.steps) == len(traced["steps"])
    assert len(job.findings) == len(diagnosed["findings"])


def test_each_name_is_a_table_with_rows(job: stepscope.Job) -> None:
    assert {"findings", "steps", "ranks", "collectives", "kernels", "operators", "events"} <= set(job.names)
    assert all(len(job.table(name)) for name in job.names)


def test_events_are_those_of_the_files(job: stepscope.Job, traces: Path) -> None:
    spans = [e for f in traces.iterdir() for e in json.loads(f.read_text())["traceEvents"] if e.get("ph") == "X"]
    events = job.events
    assert len(events) == len(spans)
    kernels = [event["dur_ns"] for event in events if event["category"] == "kernel"]
    assert sum(kernels) == pytest.approx(sum(e["dur"] * 1000 for e in spans if e["cat"] == "kernel"), abs=len(kernels))


def test_a_table_that_is_not_there_says_why(job: stepscope.Job) -> None:
    with pytest.raises(DataError) as missing:
        _ = job.runs
    assert missing.value.why
    with pytest.raises(DataError) as empty:
        _ = job.memory
    assert "profile_memory" in (empty.value.why or "")
    with pytest.raises(UsageError, match="kernels"):
        job.table("kernls")


def test_two_jobs_are_compared_and_one_is_predicted(ran: Ran, job: stepscope.Job, traces: Path, tmp_path: Path) -> None:
    other = write_job(build(world=2, steps=3, forward_ns=900_000), tmp_path)
    answer = job.compare(other)
    compared = json.loads(ran("compare", str(traces), str(other), "--json").out)
    assert [figure["ratio"] for figure in answer.to_json()["figures"]] == [f["ratio"] for f in compared["figures"]]
    assert len(answer["figures"]) == len(compared["figures"])
    assert not len(answer["scaling"])
    assert answer._repr_html_().count("<table") == sum(1 for frame in answer.frames.values() if len(frame))
    predicted = job.predict([4, 8])
    assert predicted["steps"]["gpus"] == [4, 8]


def test_a_report_has_the_files_of_the_command(ran: Ran, job: stepscope.Job, traces: Path, tmp_path: Path) -> None:
    written = job.report(tmp_path / "a", formats=("csv", "md"))
    ran("report", str(traces), "-o", str(tmp_path / "b"), "--csv", "--md")
    own = {".stepscope-report.json"}  # which of them the command wrote
    assert {p.name for p in (tmp_path / "b").iterdir()} - own == {p.name for p in written}


def test_charts_are_drawn_in_a_notebook(job: stepscope.Job, tmp_path: Path) -> None:
    chart = job.chart("trace_budget")
    shown, how = chart._repr_mimebundle_()
    assert set(shown) == {"application/vnd.vegalite.v5+json", "image/png", "text/plain"}
    spec = shown["application/vnd.vegalite.v5+json"]
    assert "var(--" not in json.dumps(spec)
    assert spec["$schema"].endswith("/v5.json")
    assert spec["layer"][0]["data"] == chart.spec["layer"][0]["data"]
    assert spec["config"]["axis"]["labelFontSize"] > 12
    png = base64.b64decode(shown["image/png"])
    assert int.from_bytes(png[16:20]) == 2 * how["image/png"]["width"]
    assert len(png) < 100_000
    assert len(repr(chart)) < 100
    assert chart.save(tmp_path / "chart.svg").read_bytes().startswith(b"<svg")
    with pytest.raises(UsageError):
        chart.save(tmp_path / "chart.gif")
    with pytest.raises(UsageError):
        job.chart("none-such")


def test_the_first_screen_is_its_text(ran: Ran, job: stepscope.Job, traces: Path) -> None:
    shown = ran("diagnose", str(traces)).out
    assert str(job).splitlines()[0] in shown
    html = job._repr_html_()
    assert html is not None
    lines = re.sub("<.*?>", "", html).splitlines()
    assert max(len(line) for line in lines if " $ " not in line) <= 88
    strong = re.findall("<b>(.*?)</b>", html)
    assert strong[0] == str(job).splitlines()[0]
    assert any("&lt;-" in line for line in strong[1:])
    assert "below:" not in html


def test_a_mistake_in_a_notebook_is_shown_once_and_without_the_way_to_it() -> None:
    job = stepscope.open("nowhere")
    assert job._repr_html_() is None
    with pytest.raises(DataError) as error:
        repr(job)
    assert error.value._render_traceback_() == [f"DataError: {error.value}"]


@pytest.mark.parametrize(
    "stated",
    [
        {"scaling": "sideways"}, {"world_size": 0}, {"target_accuracies": [2.0]}, {"target_accuracies": [0.7]},
        {"drop_epochs": -1}, {"drop_epochs": 2}, {"window": 0}, {"window": 2}, {"ranks": {"nosuch.json": 3}},
        {"communication": "nosuchkernel"}, {"communication": ""}, {"cell": "c1"}, {"columns": {"a": None}},
    ],
)  # fmt: skip
def test_what_changes_nothing_is_refused(traces: Path, stated: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        _ = stepscope.open(traces, **stated).verdict


def test_what_is_stated_is_obeyed(traces: Path, tmp_path: Path) -> None:
    table = tmp_path / "runs.csv"
    table.write_text("name,gpus,speed,junk\na,1,100,7\nb,2,190,8\n")
    job = stepscope.open(table, columns={"speed": "samples_per_s", "junk": None}, scaling="weak")
    assert job.runs["samples_per_s"] == [100, 190]
    assert job.table("scaling")["efficiency"][-1] == pytest.approx(0.95)
    named = sorted(traces.iterdir())
    renamed = stepscope.open(*named, communication="sgd_kernel")
    plain = stepscope.open(*named)
    assert sum(renamed.table("budget")["comm"]) > sum(plain.table("budget")["comm"])


def test_a_prediction_takes_numbers_and_refuses_what_is_unknown(job: stepscope.Job) -> None:
    same = job.predict(8)
    larger = job.predict(gpus=[8], batch=2.0)
    assert larger["steps"]["step_ns"][0] > same["steps"]["step_ns"][0]
    for wrong in (
        {"gpus": []},
        {"gpus": 0},
        {"batch": -1.0},
        {"precision": "fp5"},
        {"gpu": "nosuch"},
        {"bucket_bytes": 0},
    ):
        with pytest.raises(UsageError):
            job.predict(**wrong)


def test_a_report_from_python_has_the_timeline(traces: Path, tmp_path: Path) -> None:
    job = stepscope.open(traces)
    assert job.findings is not None
    page, *_ = job.report(tmp_path / "page", formats=["html"], drawers=0)
    assert 'id="timeline' in page.read_text()
    with pytest.raises(UsageError):
        job.report(tmp_path, formats=["docx"])  # type: ignore[list-item]


def test_traces_are_compared_by_kernels_and_steps(ran: Ran, traces: Path, job: stepscope.Job, tmp_path: Path) -> None:
    other = write_job(build(world=2, steps=3, forward_ns=900_000), tmp_path)
    answer = job.diff(other)
    told = json.loads(ran("trace", str(other), "--diff", str(traces), "--json").out)
    assert [row["delta_ns"] for row in answer["kernels"]] == [
        row["delta_ns"] for diff in told["diffs"] for row in diff["kernels"]
    ]
    assert sum(answer["kernels"]["delta_ns"]) > 0
    same = job.diff(steps=([10], [11]), ranks=[1])
    assert set(same["parts"]["rank"]) == {1}
    with pytest.raises(UsageError):
        job.diff()
    with pytest.raises(UsageError):
        job.diff(other, ranks=[7])


def test_a_trace_without_annotations_has_tables(tmp_path: Path) -> None:
    """As nsys exports of a program without NVTX ranges."""
    kernel = {
        "ph": "X",
        "cat": "kernel",
        "name": "gemm",
        "pid": 0,
        "tid": 7,
        "ts": 1.5,
        "dur": 2.5,
        "args": {"stream": 7},
    }
    (tmp_path / "rank0.json").write_text(json.dumps({"traceEvents": [kernel]}))
    job = stepscope.open(tmp_path)
    assert "device_events" in job.names
    assert len(job.table("device_events")) == 1

"""`stepscope trace` as a user runs it."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
from tests.e2e.runs import Cli
from tests.trace_builder import build, write_job

from stepscope.records.finding import Finding
from stepscope.traces.collectives import rank_communication
from stepscope.traces.load import load_traces
from stepscope.traces.rule_facts import check_plan

pytestmark = pytest.mark.e2e


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(build(world=4, steps=4, late={2: 400_000}), tmp_path / "job")


def test_a_folder_of_traces_shows_findings_and_the_budget_of_every_rank(stepscope: Cli, job: Path) -> None:
    done = stepscope("trace", str(job))
    assert done.code == 0, done.err
    assert done.out.startswith("4 ranks · ")
    assert "Time budget" in done.out
    assert done.err == ""
    assert "\x1b" not in done.out


def test_json_is_one_document_whose_parts_sum(stepscope: Cli, job: Path) -> None:
    document = stepscope("trace", str(job), "--json").json()
    assert document["schema"] == "stepscope.trace/1"
    assert [r["rank"] for r in document["ranks"]] == [0, 1, 2, 3]
    for each in (*document["ranks"], *document["steps"]):
        total = each["compute_ns"] + each["exposed_comm_ns"] + each["exposed_memory_ns"] + each["idle_ns"]
        assert total == each["window_ns"]
    assert {s["rank"] for s in document["stragglers"]} == {2}


def test_findings_have_the_shape_that_diagnose_prints(stepscope: Cli, job: Path) -> None:
    document = stepscope("trace", str(job), "--json").json()
    first = document["findings"][0]
    assert list(first) == list(Finding.__dataclass_fields__)
    assert (first["rule"], first["subject"]) == ("straggler", "rank 2")
    assert set(first["advice"][0]) == {"text", "command"}
    assert first["advice"][0]["command"].startswith(f"stepscope trace {job}")
    assert {
        "rule": "plan-broken",
        "reason": "the traces have no communication plan: they are not from stepscope bench --profile",
        "command": None,
    } in (document["skipped"])


def test_the_name_of_a_rule_is_a_condition(stepscope: Cli, job: Path) -> None:
    done = stepscope("trace", str(job), "--fail-if", "straggler")
    assert done.code == 6
    assert "failed: straggler" in done.err
    assert stepscope("trace", str(job), "--fail-if", "fp32-matmul").code == 0
    mistyped = stepscope("trace", str(job), "--fail-if", "stragler")
    assert mistyped.code == 2
    assert "did you mean 'straggler'" in mistyped.err


def test_csv_files_hold_every_section(stepscope: Cli, job: Path, tmp_path: Path) -> None:
    assert stepscope("trace", str(job), "--csv", str(tmp_path / "out")).code == 0
    rows = list(csv.DictReader((tmp_path / "out" / "budget.csv").read_text().splitlines()))
    assert [row["rank"] for row in rows] == ["0", "1", "2", "3"]
    assert (tmp_path / "out" / "steps.csv").exists()


def test_fail_if_ends_with_6_and_says_the_number(stepscope: Cli, job: Path) -> None:
    done = stepscope("trace", str(job), "--fail-if", "exposed_comm_fraction > 0.000001")
    assert done.code == 6
    assert "exposed_comm_fraction = " in done.err
    assert stepscope("trace", str(job), "--fail-if", "exposed_comm_fraction > 0.999").code == 0


def test_ranks_and_steps_can_be_chosen(stepscope: Cli, job: Path) -> None:
    document = stepscope("trace", str(job), "--json", "--rank", "1,3", "--steps", "11-12").json()
    assert {r["rank"] for r in document["ranks"]} == {1, 3}
    assert {s["step"] for s in document["steps"]} == {11, 12}
    assert "no trace of rank 9" in stepscope("trace", str(job), "--rank", "9").err


def test_a_truncated_trace_is_read_and_said(stepscope: Cli, job: Path) -> None:
    file = job / "rank-1.json"
    file.write_text(file.read_text()[:-4000])
    done = stepscope("trace", str(job))
    assert done.code == 0
    assert "rank 1: the file stops inside its list of events" in done.out


def bad_inputs(folder: Path) -> dict[str, str]:
    """Path -> what must be said of it."""
    folder.mkdir()
    (folder / "empty.json").write_text("")
    (folder / "other.json").write_text('{"a": 1}')
    (folder / "corrupt.json.gz").write_bytes(gzip.compress(b'{"traceEvents": [' + b" " * 999)[:30] + b"\xff" * 99)
    (folder / "words.txt").write_text("no trace")
    (folder / "nothing").mkdir()
    return {
        "empty.json": "the file is empty",
        "other.json": "not a PyTorch profiler trace",
        "corrupt.json.gz": "corrupt",
        "words.txt": "not a PyTorch profiler trace",
        "nothing": "no trace files in this folder",
        "missing.json": "no such file or folder",
    }


def test_bad_input_is_one_clear_error_each(stepscope: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "bad"
    for name, said in bad_inputs(folder).items():
        done = stepscope("trace", str(folder / name))
        assert done.code == 2, (name, done.out)
        assert said in done.err, name
        assert name in done.err
        assert "Traceback" not in done.err


def test_two_files_of_one_rank_are_refused(stepscope: Cli, job: Path) -> None:
    (job / "again.json").write_text((job / "rank-0.json").read_text())
    done = stepscope("trace", str(job))
    assert done.code == 2
    assert "rank 0 twice" in done.err


def test_a_mistyped_section_is_told(stepscope: Cli, job: Path) -> None:
    done = stepscope("trace", str(job), "--show", "budgte")
    assert done.code == 2
    assert "did you mean 'budget'" in done.err


def test_all_ranks_merge_into_one_file(stepscope: Cli, job: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged.json.gz"
    done = stepscope("trace", str(job), "--merge", str(merged))
    assert done.code == 0
    assert "4 ranks on one clock" in done.err
    events = json.loads(gzip.decompress(merged.read_bytes()))["traceEvents"]
    assert {e["pid"] // 10000 for e in events if isinstance(e.get("pid"), int) and e["ph"] == "X"} == {
        0,
        1,
        2,
        3,
    }


def test_a_slower_job_is_told_from_the_one_before(stepscope: Cli, tmp_path: Path) -> None:
    for name, forward in (("old", 100_000), ("new", 160_000)):
        write_job(build(world=2, steps=8, forward_ns=forward), tmp_path / name)
    done = stepscope("trace", str(tmp_path / "new"), "--diff", str(tmp_path / "old"))
    assert done.code == 0, done.err
    assert "rank 0: slower" in done.out
    same = stepscope("trace", str(tmp_path / "new"), "--diff", str(tmp_path / "new"), "--json").json()
    assert {d["verdict"] for d in same["diffs"]} == {"no significant difference"}


def test_steps_of_one_trace_are_compared(stepscope: Cli, job: Path) -> None:
    done = stepscope("trace", str(job), "--diff-steps", "10:12", "--rank", "1")
    assert done.code == 0, done.err
    assert "rank 1: not tested" in done.out
    assert "no step 99" in stepscope("trace", str(job), "--diff-steps", "10:99").err


def test_what_was_read_can_be_kept(stepscope: Cli, job: Path) -> None:
    first, second = (stepscope("trace", str(job), "--cache", "--show", "all") for _ in range(2))
    assert first.code == second.code == 0
    assert first.out == second.out
    assert any((stepscope.folder / "cache" / "stepscope").rglob("*"))


def test_a_profiled_run_follows_its_plan_and_naive_does_not_overlap(stepscope: Cli, tmp_path: Path) -> None:
    matrix = tmp_path / "m.yaml"
    matrix.write_text(
        "version: 1\n"
        "base: {workload: mlp, model: {size: tiny}, dataset: synthetic, global_batch: 32, steps: 2, seed: 1}\n"
        "axes: {strategy: [naive, interleaved], world_size: [2]}\n"
        "measure: {warmup: 1}\n"
    )
    run = tmp_path / "run"
    assert stepscope("bench", str(matrix), "-o", str(run), "--profile").code == 0
    several = stepscope("trace", str(run))
    assert several.code == 2
    assert "--cell mlp-naive" in several.err
    document = stepscope("trace", str(run), "--cell", "mlp-naive", "--json").json()
    assert {r["source"] for r in document["ranks"]} == {"cpu_spans"}
    for folder in run.glob("cells/*/trace"):
        for trace in load_traces(folder).ranks:
            calls = rank_communication(trace).collectives
            check = check_plan(trace, calls)
            assert check is not None
            assert check.holds, check.differences
            assert check.steps == 3
            assert (check.launched_in_backward > 0) is (check.strategy == "interleaved")
            short = check_plan(trace, calls[:-1])
            assert short is not None
            assert short.holds is False
            assert "missing 1 x all_reduce" in json.dumps(short.differences)

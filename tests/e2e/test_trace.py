"""`stepscope trace` as a user runs it."""

from __future__ import annotations

import csv
import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, Here
from tests.trace_builder import build, write_job

from stepscope.records.finding import Finding
from stepscope.traces.collectives import communication
from stepscope.traces.events import RankView
from stepscope.traces.load import load_traces
from stepscope.traces.rule_facts import check_plan

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_job(build(world=4, steps=4, late={2: 400_000}), tmp_path_factory.mktemp("trace") / "job")


def test_a_folder_of_traces_shows_findings_and_the_budget_of_every_rank(here: Here, job: Path) -> None:
    done = here("trace", str(job))
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("Straggler: rank 2 ")
    assert "  from   4 ranks · " in done.out
    assert "Time budget" in done.out
    assert "\x1b" not in done.out


def test_json_is_one_document_with_the_findings_of_diagnose(here: Here, job: Path) -> None:
    document = here("trace", str(job), "--json").json()
    assert document["schema"] == "stepscope.trace/1"
    assert [r["rank"] for r in document["ranks"]] == [0, 1, 2, 3]
    assert {s["rank"] for s in document["stragglers"]} == {2}
    first = document["findings"][0]
    assert list(first) == list(Finding.__dataclass_fields__)
    assert (first["rule"], first["subject"]) == ("straggler", "rank 2")
    assert set(first["advice"][0]) == {"text", "command"}
    assert first["advice"][0]["command"].startswith(f"stepscope trace {job}")
    reasons = {each["rule"]: each["reason"] for each in document["skipped"]}
    assert reasons["plan-broken"].startswith("the traces have no communication plan")
    chosen = here("trace", str(job), "--json", "--rank", "1,3", "--steps", "11-12").json()
    assert {r["rank"] for r in chosen["ranks"]} == {1, 3}
    assert {s["step"] for s in chosen["steps"]} == {11, 12}


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--fail-if", "straggler"), 6, "failed: straggler"),
        (("--fail-if", "fp32-matmul"), 0, ""),
        (("--fail-if", "stragler"), 2, "did you mean 'straggler'"),
        (("--fail-if", "exposed_comm_fraction > 0.000001"), 6, "exposed_comm_fraction = "),
        (("--fail-if", "exposed_comm_fraction > 0.999"), 0, ""),
        (("--rank", "9"), 2, "no trace of rank 9"),
        (("--show", "budgte"), 2, "did you mean 'budget'"),
        (("--diff-steps", "10:99"), 2, "no step 99"),
    ],
)
def test_conditions_and_mistakes_have_their_exit_codes(
    here: Here, job: Path, options: tuple[str, ...], code: int, said: str
) -> None:
    done = here("trace", str(job), *options)
    assert (done.code, said in done.err) == (code, True), done.err


def test_csv_files_hold_every_section(here: Here, job: Path, tmp_path: Path) -> None:
    assert here("trace", str(job), "--csv", str(tmp_path / "out")).code == 0
    rows = list(csv.DictReader((tmp_path / "out" / "budget.csv").read_text().splitlines()))
    assert [row["rank"] for row in rows] == ["0", "1", "2", "3"]
    assert (tmp_path / "out" / "steps.csv").exists()


def test_a_truncated_trace_is_read_and_a_rank_given_twice_refused(here: Here, job: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(job, tmp_path / "job"))
    cut = folder / "rank-1.json"
    cut.write_text(cut.read_text()[:-4000])
    assert "rank 1: the file stops inside its list of events" in here("trace", str(folder)).out
    (folder / "again.json").write_text((folder / "rank-0.json").read_text())
    done = here("trace", str(folder))
    assert (done.code, "rank 0 twice" in done.err) == (2, True)


BAD = {
    "empty.json": (b"", "the file is empty"),
    "other.json": (b'{"a": 1}', "not a PyTorch profiler trace"),
    "corrupt.json.gz": (gzip.compress(b'{"traceEvents": [' + b" " * 999)[:30] + b"\xff" * 99, "corrupt"),
    "words.txt": (b"no trace", "not a PyTorch profiler trace"),
    "missing.json": (None, "no such file or folder"),
}


@pytest.mark.parametrize("name", [*BAD, "nothing"])
def test_bad_input_is_one_clear_error_each(here: Here, tmp_path: Path, name: str) -> None:
    content, said = BAD.get(name, (None, "no trace files in this folder"))
    if content is not None:
        (tmp_path / name).write_bytes(content)
    elif name == "nothing":
        (tmp_path / name).mkdir()
    done = here("trace", name)
    assert done.code == 2, done.out
    assert said in done.err
    assert name in done.err


def test_all_ranks_merge_into_one_file(here: Here, job: Path, tmp_path: Path) -> None:
    merged = tmp_path / "merged.json.gz"
    done = here("trace", str(job), "--merge", str(merged))
    assert (done.code, "4 ranks on one clock" in done.err) == (0, True)
    events = json.loads(gzip.decompress(merged.read_bytes()))["traceEvents"]
    ranks = {e["pid"] // 10000 for e in events if isinstance(e.get("pid"), int) and e["ph"] == "X"}
    assert ranks == {0, 1, 2, 3}


def test_a_slower_job_is_told_from_the_one_before_and_steps_from_each_other(
    here: Here, job: Path, tmp_path: Path
) -> None:
    for name, forward in (("old", 100_000), ("new", 160_000)):
        write_job(build(world=2, steps=8, forward_ns=forward), tmp_path / name)
    done = here("trace", "new", "--diff", "old")
    assert (done.code, "rank 0: slower" in done.out) == (0, True)
    same = here("trace", "new", "--diff", "new", "--json").json()
    assert {d["verdict"] for d in same["diffs"]} == {"no significant difference"}
    steps = here("trace", str(job), "--diff-steps", "10:12", "--rank", "1")
    assert (steps.code, "rank 1: not tested" in steps.out) == (0, True)


def test_what_was_read_can_be_kept(here: Here, job: Path) -> None:
    first, second = (here("trace", str(job), "--cache", "--show", "all") for _ in range(2))
    assert first.code == second.code == 0
    assert first.out == second.out
    assert any((here.folder / "cache" / "stepscope").rglob("*"))


def test_a_profiled_run_follows_its_plan_and_naive_does_not_overlap(cli: Cli, here: Here) -> None:
    (cli.folder / "m.yaml").write_text(
        "version: 1\n"
        "base: {workload: mlp, model: {size: tiny}, dataset: synthetic, global_batch: 32, steps: 2, seed: 1}\n"
        "axes: {strategy: [naive, interleaved], world_size: [2]}\n"
        "measure: {warmup: 1}\n"
    )
    assert cli("bench", "m.yaml", "-o", "run", "--profile").code == 0
    several = here("trace", "run")
    assert (several.code, "--cell mlp-naive" in several.err) == (2, True)
    document = here("trace", "run", "--cell", "mlp-naive", "--json").json()
    assert {r["source"] for r in document["ranks"]} == {"cpu_spans"}
    for folder in cli.folder.glob("run/cells/*/trace"):
        for trace in load_traces(folder).ranks:
            view = RankView(trace)
            check = check_plan(view)
            assert check is not None
            assert check.holds, check.differences
            assert check.steps == 3
            assert (check.launched_in_backward > 0) is (check.strategy == "interleaved")
            view.made[communication] = replace(communication(view), collectives=communication(view).collectives[:-1])
            short = check_plan(view)
            assert short is not None
            assert short.holds is False
            assert "missing 1 x all_reduce" in json.dumps(short.differences)

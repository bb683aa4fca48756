"""A rank that raises, exits, hangs, is killed or runs out of memory: the other cells run, the record names it."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from tests.e2e.runs import rows, samples_of, status_of

pytestmark = [pytest.mark.e2e, pytest.mark.dist, pytest.mark.timeout(300)]


def faulty(kind: str, **options: object) -> str:
    model = json.dumps({"kind": kind, **options})
    return f"include:\n  - {{workload: faulty, model: {model}, strategy: ddp}}\n  - {{strategy: bucketed}}"


@pytest.mark.parametrize(
    ("kind", "status", "words"),
    [
        ("raise", "error", "ValueError: planted failure"),
        ("exit", "error", "exited with code 3"),
        ("quiet_exit", "killed", "ended without a word"),
        ("kill", "killed", "SIGKILL"),
        ("host_oom", "host_oom", "rank 1"),
        ("cuda_oom", "oom", "rank 1"),
        ("watchdog", "host_oom", "host memory left"),
        ("diverge", "error", "replicas diverged"),
    ],
)
def test_a_failing_rank_is_named_and_the_other_cells_still_run(
    kind: str, status: str, words: str, stepscope, matrix, tmp_path: Path
) -> None:
    done = stepscope("bench", str(matrix(faulty(kind))), "-o", "run", "--json")
    assert done.code == 4, done.err
    found = rows(tmp_path / "run")
    assert found["mlp-naive-w2"]["status"] == "ok"
    assert found["mlp-bucketed-w2"]["status"] == "ok"
    row = found["faulty-ddp-w2"]
    record = status_of(tmp_path / "run", row)
    assert row["status"] == record["status"] == status
    assert record["failing_rank"] == 1
    assert words in record["reason"]
    assert row["step_ns_median"] is None
    if kind in ("raise", "exit", "kill", "quiet_exit"):
        assert samples_of(tmp_path / "run", row, 0), "partial samples are kept"


def test_a_hang_ends_at_the_deadline_and_names_the_rank_that_did_not_enter(
    stepscope, matrix, tmp_path: Path
) -> None:
    done = stepscope("bench", str(matrix(faulty("hang"), timeout_s=8)), "-o", "run")
    assert done.code == 4, done.err
    found = rows(tmp_path / "run")
    record = status_of(tmp_path / "run", found["faulty-ddp-w2"])
    assert (record["status"], record["failing_rank"]) == ("timeout", 1)
    assert "never called collective" in record["reason"]
    assert found["mlp-bucketed-w2"]["status"] == "ok"
    assert "timeout" in done.out, "the table names the failed cell"


def test_after_an_oom_cells_that_only_ask_for_more_are_skipped(stepscope, tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        "version: 1\n"
        "base: {workload: faulty, model: {kind: host_oom, width: 64}, dataset: synthetic,\n"
        "       dataset_options: {samples: 512}, lr: 0.05, global_batch: 32, steps: 20, world_size: 2, strategy: naive}\n"
        "axes: {model.width: [64, 128]}\n"
        "include: [{workload: faulty, model: {kind: none, width: 256}}]\n"
        "measure: {warmup: 2}\n"
    )
    done = stepscope("bench", str(path), "-o", "run")
    assert done.code == 4, done.err
    lines = [json.loads(line) for line in (tmp_path / "run" / "results.jsonl").read_text().splitlines()]
    by_width = {line["model"]["width"]: line for line in lines}
    assert by_width[64]["status"] == "host_oom"
    assert by_width[128]["status"] == "skipped"
    assert by_width[64]["cell_id"] in status_of(tmp_path / "run", by_width[128])["reason"]
    assert by_width[256]["status"] == "ok", "another kind of cell is tried"


def test_rerunning_completes_only_what_is_missing(stepscope, matrix, tmp_path: Path) -> None:
    run = tmp_path / "run"
    first = stepscope("bench", str(matrix(faulty("raise"))), "-o", "run")
    assert first.code == 4
    kept = rows(run)["mlp-naive-w2"]
    summary = run / "cells" / kept["cell_id"] / "rank-00000.json"
    before = summary.stat().st_mtime_ns
    again = stepscope("bench", str(matrix(faulty("raise"))), "-o", "run")
    assert "1 cells to run, 2 kept" in again.err
    assert summary.stat().st_mtime_ns == before
    assert status_of(run, rows(run)["faulty-ddp-w2"])["attempt"] == 2


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_flushes_says_how_to_resume_and_leaves_no_process(
    signum: int, code: int, start, stepscope, matrix, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    path = matrix(faulty("hang"))
    process = start("bench", str(path), "-o", "run")
    hanging = _wait_for(lambda: list(run.glob("cells/faulty-*/heartbeat-00001")), process)
    _wait_for(lambda: json.loads(hanging[0].read_text())["step"] >= 12, process)
    ranks = [json.loads(p.read_text())["pid"] for p in run.glob("cells/faulty-*/heartbeat-*")]
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "-o run" in err
    assert "Traceback" not in err
    assert not [pid for pid in ranks if psutil.pid_exists(pid)]
    found = rows(run)
    assert found["mlp-naive-w2"]["status"] == "ok"
    assert found["faulty-ddp-w2"]["status"] == "interrupted"
    assert found["mlp-bucketed-w2"]["status"] == "interrupted"
    assert samples_of(run, found["faulty-ddp-w2"], 0), "partial samples are kept"


def test_a_killed_controller_leaves_no_ranks_and_the_run_resumes(
    start, stepscope, matrix, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    path = matrix(faulty("hang"))
    process = start("bench", str(path), "-o", "run")
    hanging = _wait_for(lambda: list(run.glob("cells/faulty-*/heartbeat-00001")), process)
    _wait_for(lambda: json.loads(hanging[0].read_text())["step"] >= 12, process)
    ranks = [json.loads(p.read_text())["pid"] for p in run.glob("cells/faulty-*/heartbeat-*")]
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    limit = time.monotonic() + 40
    while (left := [pid for pid in ranks if psutil.pid_exists(pid)]) and time.monotonic() < limit:
        time.sleep(0.2)
    assert not left
    text = path.read_text().replace('"hang"', '"none"')
    path.write_text(text)
    done = stepscope("bench", str(path), "-o", "run")
    assert done.code == 0, done.err
    assert "2 cells to run, 1 kept" in done.err


def _wait_for(look, process, *, seconds: float = 120):
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        try:
            found = look()
        except (ValueError, OSError):
            found = None
        if found:
            return found
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    raise AssertionError("waited in vain")

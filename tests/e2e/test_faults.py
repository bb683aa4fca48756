"""A rank that raises, exits, hangs, is killed or runs out of memory: the other cells run, the record names it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from tests.e2e.runs import Cli, Done, by_cell, results, samples_of, status_of, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.dist, pytest.mark.timeout(300)]

EXPECTED = {
    "raise": ("error", "ValueError: planted failure"),
    "exit": ("error", "exited with code 3"),
    "quiet_exit": ("killed", "exited without an error message"),
    "kill": ("killed", "SIGKILL"),
    "cuda_oom": ("oom", "rank 1"),
    "watchdog": ("host_oom", "host memory left"),
    "diverge": ("error", "replicas diverged"),
    "hang": ("timeout", "never called collective"),
}


def faulty(kind: str, **options: object) -> str:
    model = json.dumps({"kind": kind, **options})
    return f"include:\n  - {{workload: faulty, model: {model}, strategy: ddp}}\n  - {{strategy: bucketed}}"


@pytest.fixture(scope="module")
def all_faults(shared_cli: Cli) -> tuple[Done, Path]:
    """One run with every fault, a good cell before and one after them."""
    kinds = json.dumps(list(EXPECTED))
    name = shared_cli.matrix(
        f"include:\n"
        f"  - workload: faulty\n"
        f"    strategy: ddp\n"
        f"    axes: {{model.kind: {kinds}}}\n"
        f"  - {{strategy: bucketed}}",
        timeout_s=20,
    )
    return shared_cli("bench", name, "-o", "run"), shared_cli.folder / "run"


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_failing_rank_is_named_with_the_reason(kind: str, all_faults: tuple[Done, Path]) -> None:
    done, run = all_faults
    assert done.code == 4, done.err
    status, words = EXPECTED[kind]
    row = by_cell(run)[kind]
    record = status_of(run, row)
    assert row["status"] == record["status"] == status, record
    assert record["failing_rank"] == 1
    assert words in record["reason"]
    assert row["error"]
    assert row["step_ns_median"] is None


@pytest.mark.parametrize("cell", ["mlp-naive-w2", "mlp-bucketed-w2"])
def test_the_other_cells_still_run(cell: str, all_faults: tuple[Done, Path]) -> None:
    _, run = all_faults
    row = by_cell(run)[cell]
    assert row["status"] == "ok"
    assert row["step_ns_median"] > 0


@pytest.mark.parametrize("kind", ["raise", "exit", "kill", "hang"])
def test_samples_measured_before_the_failure_are_kept(kind: str, all_faults: tuple[Done, Path]) -> None:
    _, run = all_faults
    assert samples_of(run, by_cell(run)[kind], 0)


def test_the_table_and_the_report_name_every_failed_cell(all_faults: tuple[Done, Path]) -> None:
    done, run = all_faults
    report = (run / "report" / "summary.md").read_text()
    for status in ("timeout", "killed", "out of host memory"):
        assert status in done.out
        assert status in report
    assert "Traceback" not in done.out
    assert "Traceback" not in done.err


def test_a_cell_that_is_merely_slow_at_its_deadline_blames_nobody(cli: Cli) -> None:
    model = json.dumps({"kind": "slow", "at": 0})
    name = cli.matrix(f"include: [{{workload: faulty, model: {model}, strategy: ddp}}]", timeout_s=25)
    path = cli.folder / name
    path.write_text(path.read_text().replace("steps: 20", "steps: 200"))
    assert cli("bench", name, "-o", "run").code == 4
    status = status_of(cli.folder / "run", by_cell(cli.folder / "run")["slow"])
    assert status["status"] == "timeout"
    assert status["failing_rank"] is None
    assert "still progressing" in status["reason"]
    assert "of 202" in status["reason"]
    assert "measure.timeout_s" in status["reason"]


def test_unreadable_data_fails_its_cells_at_once_with_the_reason_and_starts_no_rank(cli: Cli) -> None:
    (cli.folder / "data").mkdir()
    for split in ("train", "t10k"):
        for part in ("images-idx3", "labels-idx1"):
            (cli.folder / "data" / f"{split}-{part}-ubyte.gz").write_bytes(b"\x1f\x8b damaged")
    name = cli.matrix("include: [{dataset: mnist, dataset_options: null, axes: {strategy: [naive, ddp]}}]")
    done = cli("bench", name, "-o", "run", "--data-dir", "data")
    assert done.code == 4, done.err
    broken = [row for row in results(cli.folder / "run") if row["dataset"] == "mnist"]
    assert [row["status"] for row in broken] == ["error", "error"]
    (reason,) = {row["error"] for row in broken}
    for words in ("train-images-idx3-ubyte.gz", "expected a complete gzip file; found"):
        assert words in reason
    assert by_cell(cli.folder / "run")["mlp-naive-w2"] is not None
    (group,) = (cli.folder / "run" / "groups").iterdir()
    assert len(json.loads((group / "spec.json").read_text())["cells"]) == 1


def test_a_full_disk_says_what_is_saved_and_how_to_go_on(cli: Cli) -> None:
    disk = cli.folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.skip(f"a small disk cannot be made here: {mounted.stderr.strip()}")
    try:
        name = cli.matrix("include: [{seed: 1, world_size: 1, strategy: single, axes: {seed: [1, 2, 3, 4]}}]")
        path = cli.folder / name
        path.write_text(path.read_text().replace("steps: 20", "steps: 300").replace("[naive]", "[ddp]"))
        done = cli("bench", name, "-o", "disk/run")
        assert done.code == 3, done.err
        assert "No space left on device" in done.err
        assert "run the same command with `-o disk/run`" in done.err
        finished = len(list((disk / "run").glob("cells/*/status.json")))
        assert f"{finished} of 5 cells are finished and saved there" in done.err
        assert "Traceback" not in done.err
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_after_an_oom_cells_that_only_ask_for_more_are_skipped(cli: Cli) -> None:
    (cli.folder / "m.yaml").write_text(
        "version: 1\n"
        "base: {workload: faulty, model: {kind: host_oom}, dataset: synthetic, strategy: naive,\n"
        "       dataset_options: {samples: 512}, lr: 0.05, global_batch: 32, steps: 20, world_size: 2}\n"
        "axes: {model.width: [64, 128]}\n"
        "include: [{model: {kind: none, width: 256}}]\n"
        "measure: {warmup: 2}\n"
    )
    done = cli("bench", "m.yaml", "-o", "run")
    assert done.code == 4, done.err
    by_width = {row["model"]["width"]: row for row in results(cli.folder / "run")}
    assert by_width[64]["status"] == "host_oom"
    record = status_of(cli.folder / "run", by_width[64])
    assert (record["failing_rank"], "rank 1" in record["reason"]) == (1, True)
    assert by_width[128]["status"] == "skipped"
    assert by_width[64]["cell_id"] in status_of(cli.folder / "run", by_width[128])["reason"]
    assert by_width[256]["status"] == "ok", "another kind of cell is tried"


def test_rerunning_completes_only_what_is_missing(cli: Cli) -> None:
    run = cli.folder / "run"
    name = cli.matrix(f"include: [{{workload: faulty, model: {json.dumps({'kind': 'raise'})}, strategy: ddp}}]")
    assert cli("bench", name, "-o", "run").code == 4
    kept = by_cell(run)["mlp-naive-w2"]
    summary = run / "cells" / kept["cell_id"] / "rank-00000.json"
    before = summary.stat().st_mtime_ns
    again = cli("bench", name, "-o", "run")
    assert "1 cell to run, 1 kept" in again.err
    assert summary.stat().st_mtime_ns == before
    assert status_of(run, by_cell(run)["raise"])["attempt"] == 2


def _start_and_reach_the_hang(cli: Cli, name: str) -> tuple[object, list[int]]:
    run = cli.folder / "run"
    process = cli.start("bench", name, "-o", "run")
    beats = wait_for(lambda: sorted(run.glob("cells/faulty-*/heartbeat-*")), process)
    wait_for(lambda: all(json.loads(p.read_text())["step"] >= 12 for p in beats), process)
    time.sleep(1.0)  # let rank 0 flush what it has
    return process, [json.loads(p.read_text())["pid"] for p in run.glob("cells/faulty-*/heartbeat-*")]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_flushes_says_how_to_resume_and_leaves_no_process(signum: int, code: int, cli: Cli) -> None:
    run = cli.folder / "run"
    process, ranks = _start_and_reach_the_hang(cli, cli.matrix(faulty("hang")))
    process.send_signal(signum)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert "-o run" in err
    assert "1 of 3 cells has a result" in err
    assert "1 cell not begun" in err
    assert "Traceback" not in err
    assert not [pid for pid in ranks if psutil.pid_exists(pid)]
    found = by_cell(run)
    assert found["mlp-naive-w2"]["status"] == "ok"
    assert found["hang"]["status"] == "interrupted"
    assert found["mlp-bucketed-w2"]["status"] == "interrupted"
    assert samples_of(run, found["hang"], 0), "partial samples are kept"


def test_a_killed_controller_leaves_no_ranks_and_the_run_resumes(fresh_cli: Cli) -> None:
    name = fresh_cli.matrix(faulty("hang"))
    process, ranks = _start_and_reach_the_hang(fresh_cli, name)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    limit = time.monotonic() + 60
    while (left := [pid for pid in ranks if psutil.pid_exists(pid)]) and time.monotonic() < limit:
        time.sleep(0.2)
    assert not left
    path = fresh_cli.folder / name
    path.write_text(path.read_text().replace('"hang"', '"none"'))
    fresh_cli.fresh = False
    done = fresh_cli("bench", name, "-o", "run")
    assert done.code == 0, done.err
    assert "2 cells to run, 1 kept" in done.err

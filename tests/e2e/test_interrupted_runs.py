"""A run that a signal, a full disk or a failed cell cuts short: what is kept, how it goes on, no process is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time

import psutil
import pytest
from tests.e2e.runs import Cli, by_cell, samples_of, status_of, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.dist, pytest.mark.timeout(300)]


def faulty(kind: str, **options: object) -> str:
    model = json.dumps({"kind": kind, **options})
    return f"include:\n  - {{workload: faulty, model: {model}, strategy: ddp}}\n  - {{strategy: bucketed}}"


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

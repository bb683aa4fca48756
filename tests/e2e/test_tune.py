"""`stepscope tune` around a user's command: what it refuses, what fails, what is stopped, and what is left."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.profiled import FAKE_TORCH, PYTHON
from tests.e2e.runs import Cli

JOB = [PYTHON, str(Path(__file__).parent / "tuned_job.py"), "--batch-size", "8", "--fails", "0"]
QUICK = ("--budget", "300ms", "--allow", "batch")


def tuned(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "tune.json").read_text())
    return found


def alive(folder: Path) -> list[int]:
    """Processes of trials that still run."""
    known = [json.loads(path.read_text())["pid"] for path in folder.glob("*/.stepscope/process-*.json")]
    return [pid for pid in known if Path(f"/proc/{pid}").exists()]


@pytest.mark.long
def test_a_value_that_the_command_refuses_and_one_that_runs_out_of_memory_are_lost_and_the_rest_goes_on(
    cli: Cli, tmp_path: Path
) -> None:
    knobs = ("--knob", "batch=--batch-size:8,16,48", "--knob", "unit=--fails:1,2")
    done = cli("tune", *QUICK, *knobs, "--json", "-o", str(tmp_path / "t"), "--", *JOB, **FAKE_TORCH)
    assert done.code == 0, done.err
    trials = {trial["key"]: trial for trial in done.json()["trials"]}
    assert "refuses" in trials["--batch-size=48"]["lost"]
    assert "invalid choice" in trials["--batch-size=48"]["lost"]
    assert trials["--fails=1"]["lost"] == "out of memory"
    assert "a mistake" in trials["--fails=2"]["lost"]
    assert trials["--batch-size=16"]["sample"] is not None
    assert trials["--batch-size=16"]["rungs"] >= 2
    assert trials["baseline"]["step_ns"] > 2e6
    assert tuned(tmp_path / "t")["best"] in ("--batch-size=16", "baseline")
    assert not alive(tmp_path / "t")


def test_a_command_that_leaves_no_step_is_a_clear_error(cli: Cli, tmp_path: Path) -> None:
    done = cli("tune", *QUICK, "-o", str(tmp_path / "t"), "--", PYTHON, "-c", "raise SystemExit(3)", **FAKE_TORCH)
    assert done.code == 2
    assert "exit code 3" in done.err
    assert "output.log" in done.err


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_trial_and_shows_what_has_finished(cli: Cli, tmp_path: Path, signum: int) -> None:
    words = (
        "tune",
        "--budget",
        "1s",
        "--allow",
        "batch",
        "--knob",
        "batch=--batch-size:8,16,32",
        "-o",
        str(tmp_path / "t"),
    )
    child = cli.start(*words, "--", *JOB, **FAKE_TORCH)
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and not list(tmp_path.glob("t/rung-1-1-1/.stepscope/diary-*.bin")):
        time.sleep(0.05)
    os.kill(child.pid, signum)
    done = cli.finished(child)
    assert done.code == 128 + signum, done.err
    assert "finished" in done.err
    assert tuned(tmp_path / "t")["best"] == "baseline"
    assert not alive(tmp_path / "t")


@pytest.mark.long
def test_a_cell_of_two_ranks_is_tuned_and_the_same_command_continues(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(
        "version: 1\nbase: {workload: mlp, model: {size: tiny}, dataset: synthetic, dataset_options: {samples: 512},\n"
        "  micro_batch: 4, steps: auto, world_size: 2, strategy: naive}\nlaunch: {threads_per_rank: 1}\n"
    )
    words = (
        "tune",
        str(tmp_path / "m.yaml"),
        "--budget",
        "300ms",
        "--trials",
        "3",
        "-o",
        str(tmp_path / "t"),
        "--json",
    )
    done = cli(*words)
    assert done.code == 0, done.err
    document = done.json()
    tried = {trial["key"] for trial in document["trials"]}
    assert "baseline" in tried
    assert {"strategy=ddp", "strategy=bucketed"} & tried
    assert all(trial["proposal"] is None or trial["proposal"]["exact"] for trial in document["trials"])
    assert any("micro_batch" in key for key in document["left_out"])
    again = cli(*words)
    assert again.code == 0, again.err
    assert [t["sample"] for t in again.json()["trials"]] == [t["sample"] for t in document["trials"]]


@pytest.mark.long
def test_a_sharded_cell_of_a_run_is_tuned_and_goes_on_after_ctrl_c(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(
        "version: 1\nlaunch: {threads_per_rank: 1}\n"
        "base: {workload: gpt, model: {d_model: 32, num_layers: 4, vocab_size: 64, max_seq_len: 16, n_heads: 2},\n"
        "  dataset: synthetic, micro_batch: 4, steps: 12, world_size: 2, strategy: fsdp2}\n"
    )
    run, tried = tmp_path / "run", tmp_path / "t"
    assert cli("bench", str(tmp_path / "m.yaml"), "-o", str(run)).code == 0
    words = ("tune", str(run), "--budget", "300ms", "--trials", "2", "-o", str(tried), "--json")
    child = cli.start(*words)
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not list(tried.glob("rung-1/cells/*/status.json")):
        time.sleep(0.05)
    looks = {path: path.stat().st_mtime_ns for path in tried.glob("look/cells/*/status.json")}
    finished = {path: path.stat().st_mtime_ns for path in tried.glob("rung-1/cells/*/status.json")}
    os.kill(child.pid, signal.SIGINT)
    stopped = cli.finished(child)
    assert stopped.code == 130, stopped.err
    assert str(tried) in stopped.err
    done = cli(*words)
    assert done.code == 0, done.err
    document = done.json()
    assert {"unit", "reshard"} <= {knob for each in document["proposals"] for knob in each["knobs"]}
    assert len(document["trials"]) > 1
    assert all(trial["sample"] is not None for trial in document["trials"] if trial["rungs"])
    assert looks
    assert {path: path.stat().st_mtime_ns for path in looks} == looks
    kept = [path for path, time_ns in finished.items() if path.stat().st_mtime_ns == time_ns]
    assert kept

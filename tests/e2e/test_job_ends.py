"""How `stepscope profile` tells the end of a job that goes wrong, is stopped, or is too short for a window."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, wait_for
from tests.e2e.test_profile import FAKE_TORCH, JOB, PYTHON

from stepscope.records.profile import JobEnd
from stepscope.results.profiled_job import end_sentence, read_job_end
from stepscope.store.layout import ProfileLayout

pytestmark = pytest.mark.e2e

TRAIN = Path(__file__).parent / "ending_job.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


@pytest.fixture
def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(FAKE_TORCH)}


def end_of(folder: Path) -> JobEnd:
    found = read_job_end(ProfileLayout(folder))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("mode", "kind", "exception", "signalled"),
    [("raise", "crash", "ValueError", None), ("kill", "killed", None, "SIGKILL")],
)
def test_a_rank_that_fails_under_torchrun_is_named_with_its_step(
    cli: Cli, tmp_path: Path, mode: str, kind: str, exception: str | None, signalled: str | None
) -> None:
    out = tmp_path / "p"
    done = cli("profile", "-o", str(out), "--", *TORCHRUN, str(TRAIN), mode, "4", "40")
    end = end_of(out)
    assert done.code == end.code == 1
    assert (end.kind, end.ranks, end.victims, end.step) == (kind, (1,), (0,), 4)
    assert (end.exception, end.signal, end.steps_timed, end.steps_profiled) == (exception, signalled, 3, 0)
    assert end_sentence(end) in " ".join(done.out.split()), "broken into lines"
    if mode == "raise":
        assert end.place is not None
        assert end.place.endswith('in go_wrong: raise ValueError("bad batch")')


def test_a_job_that_imports_torch_after_the_hook_is_followed_to_its_end(fresh_cli: Cli, tmp_path: Path) -> None:
    """As a user's does. A rank of its own: each import of torch takes seconds."""
    world = ["env", "RANK=0", "WORLD_SIZE=1", "MASTER_ADDR=127.0.0.1", "MASTER_PORT=0"]
    done = fresh_cli("profile", "-o", str(tmp_path / "p"), "--", *world, PYTHON, str(TRAIN), "raise", "4", "40")
    end = end_of(tmp_path / "p")
    assert (done.code, end.kind, end.ranks, end.step, end.steps_timed) == (1, "crash", (0,), 4, 3)


def test_a_rank_that_hangs_is_named_while_the_job_hangs_and_at_its_end(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "p"
    line = ["profile", "--hang-after", "3", "-o", str(out), "--", *TORCHRUN, str(TRAIN), "hang", "4", "40"]
    process = cli.start(*line)
    layout = ProfileLayout(out)
    wait_for(lambda: len(layout.flights()) == 2, process)
    assert process.stderr is not None
    said = next(line for line in process.stderr if "the job hangs" in line)
    assert "rank 1 never called collective" in said
    assert process.poll() is None, "the job is not touched"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    end = end_of(out)
    assert (end.kind, end.ranks, end.victims, end.step, end.steps_timed) == ("hang", (1,), (0,), 4, 3)
    assert end.place is not None
    assert end.place.endswith("in go_wrong: time.sleep(1000)")


def test_a_job_that_ends_before_its_window_keeps_its_steps(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    out = tmp_path / "p"
    done = stepscope("profile", "-o", str(out), "--", PYTHON, str(JOB), "plain", **environment, STEPS="3")
    end = end_of(out)
    assert (done.code, end.kind, end.steps_timed, end.steps_profiled) == (0, "short", 3, 0)
    again = stepscope("profile", "-o", str(out), "--", PYTHON, str(JOB), "plain", **environment)
    assert (again.code, "not an empty folder" in again.err) == (2, True), "a diary with steps is a result"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("import nothing_of_this_name", "Crash: the command raised ModuleNotFoundError"),
        ("import torch; open('/nothing/of/this/name')", "Crash: the command raised FileNotFoundError"),
        ("this is no Python", "Crash: the command raised SyntaxError"),
    ],
)
def test_a_command_that_fails_before_it_trains_is_told_as_such(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str], command: str, said: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(command)
    done = stepscope("profile", "-o", str(tmp_path / "p"), "--", PYTHON, str(script), **environment)
    assert done.code == 1
    assert said in " ".join(done.out.split())
    assert "train.py:1" in done.out
    assert "optimizer" not in done.out + done.err
    assert "--wait" not in done.err


def test_a_script_that_is_not_there_is_told_by_its_exit_code(stepscope: Cli, tmp_path: Path) -> None:
    done = stepscope("profile", "-o", str(tmp_path / "p"), "--", PYTHON, str(tmp_path / "missing.py"))
    assert done.code == 2
    assert "the command exited with code 2" in done.out


def test_two_processes_without_a_group_are_counted(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    out = tmp_path / "p"
    both = f"{PYTHON} {JOB} plain & {PYTHON} {JOB} plain; wait"
    done = stepscope("profile", "-o", str(out), "--", "sh", "-c", both, **environment, STEPS="200")
    assert (done.code, end_of(out).kind, end_of(out).independent) == (0, "ok", 2)
    assert "2 processes train" in done.out


def test_the_verdict_goes_where_it_is_wanted_and_the_jobs_output_is_its_own(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    def profiled(place: str, name: str) -> tuple[str, str]:
        line = ["profile", "--steps", "2", "--wait", "5", "--verdict", place, "-o", str(tmp_path / name)]
        done = stepscope(*line, "--", PYTHON, str(JOB), "plain", **environment)
        assert done.code == 0, done.err
        return done.out, done.err

    file = tmp_path / "verdict.txt"
    out, err = profiled(str(file), "a")
    assert out == "trained 40 steps\n"
    assert "profiled: steps" in file.read_text()
    assert "profiled: steps" not in err
    out, err = profiled("stderr", "b")
    assert out == "trained 40 steps\n"
    assert "profiled: steps" in err
    refused = stepscope("profile", "--verdict", str(tmp_path / "no" / "file"), "--", "true")
    assert (refused.code, "there is no folder" in refused.err) == (2, True)


def test_a_sleeping_job_that_fails_is_told_as_well(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    out = tmp_path / "p"
    done = stepscope("run", "-o", str(out), "--", PYTHON, str(JOB), "raises", **environment)
    assert (done.code, end_of(out).kind, end_of(out).step) == (1, "crash", 12)
    assert "Crash: rank 0 raised RuntimeError: the job's own failure in step 12" in done.err

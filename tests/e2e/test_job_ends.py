"""How `stepscope profile` tells the end of a job that goes wrong, is stopped, or is too short for a window."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from tests.e2e.profiled import JOB, PYTHON, Profiled, end_of
from tests.e2e.runs import Cli, wait_for

from stepscope.launch.ends.job import readable_records
from stepscope.records.profile import HookedProcess
from stepscope.results.profiled_job import end_sentence, read_profiled_job
from stepscope.store.layout import ProfileLayout

pytestmark = pytest.mark.e2e

TRAIN = Path(__file__).parent / "ending_job.py"
TORCHRUN = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2"]


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


def test_the_step_of_a_killed_rank_is_exact_though_nobody_wrote_it(cli: Cli, tmp_path: Path) -> None:
    """The diary is written once a second; a rank that is killed leaves its last step in memory of its own."""
    out = tmp_path / "p"
    cli("run", "-o", str(out), "--", *TORCHRUN, str(TRAIN), "kill", "40", "60")
    end = end_of(out)
    assert (end.kind, end.ranks, end.step, end.step_exact) == ("killed", (1,), 40, True)
    process = next(each for each in readable_records(ProfileLayout(out).processes(), HookedProcess) if each.rank == "1")
    assert process.box is not None


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


def test_a_rank_that_lets_others_time_out_is_at_fault(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "p"
    done = cli("run", "-o", str(out), "--", *TORCHRUN, str(TRAIN), "hang", "30", "40", "3")
    end = end_of(out)
    assert (done.code, end.kind, end.ranks, end.victims, end.step, end.restarts) == (1, "hang", (1,), (0,), 30, 0)
    assert end.hang is not None
    assert end.hang.timed_out == (0,)
    assert end.place is not None
    assert end.place.endswith("in go_wrong: time.sleep(1000)")


def test_a_killed_launcher_is_named_and_the_ranks_that_it_leaves(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "p"
    done = cli("run", "-o", str(out), "--", *TORCHRUN, str(TRAIN), "launcher", "30", "500")
    end = end_of(out)
    for _, pid in end.running:
        os.kill(pid, signal.SIGKILL)
    assert (done.code, end.kind, end.launcher, end.ranks, end.signal) == (137, "killed", True, (), "SIGKILL")
    assert [rank for rank, _ in end.running] == [0, 1]


def test_trainings_one_after_the_other_are_no_restarts(profile: Profiled) -> None:
    one = f"{' '.join(JOB)} plain"
    done = profile.around("sh", "-c", f"{one}; {one}")
    assert end_of(profile.out).restarts == 0
    job = read_profiled_job(profile.out)
    assert job is not None
    assert job.steps is not None
    assert (job.steps.trainings, job.steps.training) == (2, 2)
    assert "2 trainings one after the other" in done.out
    assert "goodput" not in done.out


def test_a_job_that_ends_before_its_window_keeps_its_steps(profile: Profiled) -> None:
    profile("plain", STEPS="3")
    end = end_of(profile.out)
    assert (end.kind, end.steps_timed, end.steps_profiled) == ("short", 3, 0)
    assert "not an empty folder" in profile("plain", code=2).err, "a diary with steps is a result"


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError"),
        ("import torch; open('/nothing/of/this/name')", "FileNotFoundError"),
        ("this is no Python", "SyntaxError"),
    ],
)
def test_a_command_that_fails_before_it_trains_is_told_as_such(
    profile: Profiled, tmp_path: Path, command: str, error: str
) -> None:
    script = tmp_path / "train.py"
    script.write_text(command)
    done = profile.around(PYTHON, str(script), code=1)
    assert f"Crash: the command raised {error}" in " ".join(done.out.split())
    assert "train.py:1" in done.out
    assert "optimizer" not in done.out + done.err
    assert "--wait" not in done.err


def test_a_script_that_is_not_there_is_told_by_its_exit_code(profile: Profiled, tmp_path: Path) -> None:
    assert "the command exited with code 2" in profile.around(PYTHON, str(tmp_path / "missing.py"), code=2).out


def test_two_processes_without_a_group_are_counted(profile: Profiled) -> None:
    one = f"{' '.join(JOB)} plain"
    done = profile.around("sh", "-c", f"{one} & {one}; wait", STEPS="200")
    assert (end_of(profile.out).kind, end_of(profile.out).independent) == ("ok", 2)
    assert "2 processes train" in done.out


@pytest.mark.parametrize("place", ["verdict.txt", "stderr"])
def test_the_verdict_goes_where_it_is_wanted_and_the_jobs_output_is_its_own(
    profile: Profiled, tmp_path: Path, place: str
) -> None:
    file = tmp_path / place
    where = place if place == "stderr" else str(file)
    done = profile("plain", options=("--steps", "2", "--wait", "5", "--verdict", where))
    assert done.out == "trained 40 steps\n"
    assert ("2 profiled" in done.err) == (place == "stderr")
    assert place == "stderr" or "2 profiled" in file.read_text()


def test_a_verdict_needs_a_folder_that_is_there(cli: Cli, tmp_path: Path) -> None:
    refused = cli("profile", "--verdict", str(tmp_path / "no" / "file"), "--", "true")
    assert (refused.code, "there is no folder" in refused.err) == (2, True)


def test_a_watched_job_that_fails_is_told_and_exported_as_well(profile: Profiled) -> None:
    done = profile("raises", command="run", code=1, options=("--export", f"prometheus:{profile.out}-metrics"))
    (metrics,) = Path(f"{profile.out}-metrics").iterdir()
    assert 'stepscope_job_steps_total{run="p"} 11\n' in metrics.read_text()
    end = end_of(profile.out)
    assert (end.kind, end.step) == ("crash", 12)
    assert "Crash: rank 0 raised RuntimeError: the job's own failure in step 12" in done.out


def test_a_job_whose_folder_is_removed_ends_with_its_own_code_and_says_so(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    done = cli("run", "-o", str(folder), "--", "sh", "-c", f"rm -r {folder}; exit 3")
    assert done.code == 3
    assert f"{folder} was removed while the job ran" in done.err
    assert not (folder / "profile.json").exists()

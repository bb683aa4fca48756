"""`stepscope profile` and `run` on jobs with a stand-in for torch: they start in milliseconds, and can go wrong at will."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests.e2e.runs import Cli, wait_for
from tests.unit.traces.test_nsys import CALLS, KERNELS, STRINGS, export

from stepscope.results.profiled_job import read_job_end
from stepscope.store.diary_tail import steps_in
from stepscope.store.layout import ProfileLayout

pytestmark = pytest.mark.e2e

JOB = Path(__file__).parent / "hooked_job.py"
FAKE_TORCH = Path(__file__).parents[1] / "fake_torch"
PYTHON = sys.executable
THREE = ["profile", "--steps", "3"]


@pytest.fixture
def environment() -> dict[str, str]:
    return {"PYTHONPATH": str(FAKE_TORCH)}


def _steps(trace: Path) -> list[str]:
    document = json.loads(gzip.decompress(trace.read_bytes()))
    return [e["name"] for e in document["traceEvents"] if e["cat"] == "user_annotation"]


def _ranks_agree(folder: Path, ranks: int) -> list[str]:
    traces = sorted((folder / "window-1").glob("rank-*.json.gz"))
    assert len(traces) == ranks
    steps = [_steps(trace) for trace in traces]
    assert all(each == steps[0] for each in steps), steps
    return steps[0]


def test_every_rank_profiles_the_same_steps_of_an_unchanged_job(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    out = tmp_path / "p"
    done = stepscope(
        "profile", "--steps", "4", "-o", str(out), "--", PYTHON, str(JOB), "launch", "3", "plain", **environment
    )
    assert done.code == 0, done.err
    assert done.out.count("trained 40 steps") == 3
    assert len(_ranks_agree(out, 3)) == 4
    verdict = json.loads((out / "verdict.json").read_text())
    assert min(verdict["profiled_step_ns"], verdict["step_ns"]) > 0
    assert "of 3 ranks" in done.out
    again = stepscope("trace", str(out), "--json")
    assert [rank["rank"] for rank in again.json()["ranks"]] == [0, 1, 2]


@pytest.mark.parametrize(("mode", "code"), [("plain", 0), ("exits", 7)])
def test_ranks_that_a_launcher_forks_are_profiled(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str], mode: str, code: int
) -> None:
    out = tmp_path / "p"
    line = [*THREE, "--wait", "9", "-o", str(out), "--", PYTHON, str(JOB), "fork ranks", "2", mode]
    done = stepscope(*line, **environment)
    assert done.code == code, done.err
    assert len(_ranks_agree(out, 2)) == (3 if mode == "plain" else 2)  # the second is unfinished


def test_ranks_chosen_are_profiled_and_no_other(stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]) -> None:
    out = tmp_path / "p"
    line = ["profile", "--ranks", "0,2", "-o", str(out), "--", PYTHON, str(JOB), "launch", "3", "plain"]
    assert stepscope(*line, **environment).code == 0
    assert sorted(path.name for path in (out / "window-1").iterdir()) == ["rank-00000.json.gz", "rank-00002.json.gz"]


def test_steps_begin_where_wait_says(stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]) -> None:
    out = tmp_path / "p"
    line = [*THREE, "--wait", "12", "--warmup", "2", "-o", str(out), "--", PYTHON, str(JOB), "plain"]
    assert stepscope(*line, **environment).code == 0
    assert _steps(out / "window-1" / "rank-00000.json.gz") == [f"ProfilerStep#{n}" for n in (14, 15, 16)]


@pytest.mark.parametrize(
    ("mode", "code", "said"),
    [
        ("raises", 1, "the job ended after 1 of 3 profiled steps"),
        ("killed", 137, "the rank ended inside the window"),
        ("own profiler", 0, "the job started its own profiler"),
        ("profiled from the start", 0, "the job's own profiler runs at step 9"),
        ("no step", 0, "no optimizer of torch.optim made a step"),
    ],
)
def test_a_job_that_cannot_be_profiled_ends_as_without_us(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str], mode: str, code: int, said: str
) -> None:
    done = stepscope(*THREE, "--wait", "9", "-o", str(tmp_path / "p"), "--", PYTHON, str(JOB), mode, **environment)
    assert done.code == code, done.err
    assert said in done.err
    assert ("trained" in done.out) == (code == 0)
    assert "stepscope_hook" not in done.err  # no traceback of ours


def test_a_job_that_exits_inside_the_window_keeps_its_code_and_its_whole_steps(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    out = tmp_path / "p"
    done = stepscope(*THREE, "--wait", "9", "-o", str(out), "--", PYTHON, str(JOB), "exits", **environment)
    assert done.code == 7
    assert "profiled: steps 11 to 11 of 1 rank" in done.out
    assert _steps(out / "window-1" / "rank-00000.json.gz") == ["ProfilerStep#10", "unfinished step"]


def test_a_rank_killed_inside_the_window_is_named(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    out = tmp_path / "p"
    line = [
        "profile",
        "--steps",
        "3",
        "--wait",
        "9",
        "-o",
        str(out),
        "--",
        PYTHON,
        str(JOB),
        "launch",
        "2",
        "rank 1 killed",
    ]
    done = stepscope(*line, **environment)
    assert "! rank 1 (" in done.out
    assert "the rank ended inside the window" in done.out
    assert "trained 40 steps" in done.out  # rank 0 goes on


def test_steps_are_those_of_the_first_optimizer_and_of_another_where_asked(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    for number in ("1", "2"):
        out = tmp_path / number
        line = [
            "profile",
            "--steps",
            "3",
            "--step-optimizer",
            number,
            "--wait",
            "5",
            "-o",
            str(out),
            "--",
            PYTHON,
            str(JOB),
        ]
        assert stepscope(*line, "two optimizers", **environment).code == 0
        assert _steps(out / "window-1" / "rank-00000.json.gz") == [f"ProfilerStep#{n}" for n in (6, 7, 8)]
    missing = stepscope(
        *["profile", "--step-optimizer", "3", "-o", str(tmp_path / "3"), "--", PYTHON, str(JOB), "two optimizers"],
        **environment,
    )
    assert (missing.code, "no trace: " in missing.err) == (0, True)


def test_steps_of_a_fork_do_not_count(stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]) -> None:
    out = tmp_path / "p"
    done = stepscope(*THREE, "--wait", "9", "-o", str(out), "--", PYTHON, str(JOB), "forks", **environment)
    assert done.code == 0
    assert _steps(out / "window-1" / "rank-00000.json.gz") == [f"ProfilerStep#{n}" for n in (10, 11, 12)]


def test_a_job_without_an_optimizer_is_profiled_for_a_time(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    line = ["profile", "--duration", "0.02", "--after", "0.01", "-o", str(tmp_path / "p"), "--", PYTHON, str(JOB)]
    done = stepscope(*line, "forwards", **environment)
    assert done.code == 0, done.err
    assert "1 rank" in done.out


def test_the_sitecustomize_that_ours_shadows_runs_and_sees_its_own_path(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys; sys.stdout.write(f'theirs: {__file__}, {sys.path}\\n')")
    both = {"PYTHONPATH": os.pathsep.join([str(theirs), environment["PYTHONPATH"]])}
    done = stepscope("profile", "-o", str(tmp_path / "p"), "--", PYTHON, str(JOB), "plain", **both)
    assert done.code == 0
    line = next(line for line in done.out.splitlines() if line.startswith("theirs: "))
    assert str(theirs / "sitecustomize.py") in line
    assert "stepscope/hook" not in line


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([PYTHON, "-I", str(JOB), "plain"], "Python ignores the environment with -I"),
        ([PYTHON, "-c", "print('no torch')"], "no process of the job imported torch"),
    ],
)
def test_a_hook_that_reaches_no_rank_says_what_to_do(
    stepscope: Cli, tmp_path: Path, command: list[str], said: str
) -> None:
    done = stepscope("profile", "-o", str(tmp_path / "p"), "--", *command)
    assert done.code in (0, 1)  # with -I the stand-in for torch is not found
    assert said in done.err
    assert "fix: " in done.err


def test_a_job_outlasts_the_reader_of_its_results(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    """``profile ... | head -1``: the job is waited for, whoever reads what stepscope shows."""
    line = [*THREE, "--wait", "9", "-o", str(tmp_path / "p"), "--", PYTHON, str(JOB), "exits"]
    process = stepscope.start(*line, **environment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=100) == 7, "the job's own code, which only who waits for it knows"
    process.stderr.close()


def test_ranks_that_the_job_does_not_have_are_named(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    job = ["--", PYTHON, str(JOB), "launch", "2", "plain"]
    done = stepscope("profile", "--ranks", "5", "-o", str(tmp_path / "p"), *job, **environment)
    assert done.code == 0
    assert done.out.count("trained 40 steps") == 2
    assert "no trace: there is no rank 5: the job has ranks 0-1\n  fix: choose other --ranks" in done.err
    assert "optimizer" not in done.err
    some = stepscope("profile", "--ranks", "1,5", "-o", str(tmp_path / "q"), *job, **environment)
    assert "! there is no rank 5: the job has ranks 0-1" in some.out
    assert [path.name for path in (tmp_path / "q" / "window-1").iterdir()] == ["rank-00001.json.gz"]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_profile_blames_no_optimizer_and_keeps_its_steps(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str], signum: int, code: int
) -> None:
    out = tmp_path / "p"
    line = [*THREE, "--wait", "99999", "-o", str(out), "--", PYTHON, str(JOB), "plain"]
    process = stepscope.start(*line, **environment, STEPS="100000")
    diary = out / ".stepscope" / "diary-00000-0.bin"
    wait_for(lambda: steps_in(diary), process)
    process.send_signal(signum)
    _, err = process.communicate(timeout=100)
    assert process.returncode == code, err
    assert "no trace: interrupted before the window" in err
    assert "made a step" not in err
    end = read_job_end(ProfileLayout(out))
    assert end is not None
    assert (end.kind, end.signal) == ("interrupted", signal.Signals(signum).name)
    assert end.steps_timed == steps_in(diary) > 0


def test_a_job_that_left_nothing_does_not_block_its_folder(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    out = tmp_path / "p"
    failed = stepscope("profile", "-o", str(out), "--", PYTHON, "-c", "raise SystemExit(4)")
    assert failed.code == 4
    said = stepscope("diagnose", str(out), "--json")
    assert (said.code, said.json()["verdict"]["kind"]) == (0, "crash")
    again = stepscope(*THREE, "--wait", "9", "-o", str(out), "--", PYTHON, str(JOB), "plain", **environment)
    assert again.code == 0, again.err
    kept = stepscope("profile", "-o", str(out), "--", PYTHON, "-c", "raise SystemExit(4)")
    assert (kept.code, "not an empty folder" in kept.err) == (2, True)
    assert len(_ranks_agree(out, 1)) == 3


def test_mistakes_start_nothing(stepscope: Cli, tmp_path: Path) -> None:
    out = tmp_path / "p"
    for line, said in (
        (["-o", str(out), "--", "no-such-program"], "no-such-program' cannot be started"),
        (["-o", str(out)], "profile needs a command"),
        (["-o", str(tmp_path), "--wait", "soon", "--", "true"], "expected auto or a number"),
        (["--attach", str(tmp_path / "none")], "is not the folder of a job"),
        (
            ["--attach", str(tmp_path), "--", "true"],
            "starts a command or attaches to a job that runs, and both are given",
        ),
    ):
        done = stepscope("profile", *line)
        assert (done.code, said in done.err) == (2, True), (line, done.err)
    assert not out.exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    done = stepscope("profile", "-o", str(tmp_path / "full"), "--", "true")
    assert (done.code, "not an empty folder" in done.err) == (2, True)


def test_a_window_whose_folder_cannot_be_written_is_reported_and_the_job_goes_on(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    out = tmp_path / "p"
    blocked = [PYTHON, "-c", f"open({str(out / 'window-1')!r}, 'w'); import sys, runpy; sys.argv = ['job', 'plain'];"
               f"runpy.run_path({str(JOB)!r}, run_name='__main__')"]  # fmt: skip
    done = stepscope("profile", "-o", str(out), "--", *blocked, **environment)
    assert "trained 40 steps" in done.out
    assert done.code == 0, "the job's own"
    assert "the trace cannot be written" in done.err


def test_a_running_job_is_profiled_as_often_as_wanted(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    run, tell = tmp_path / "run", tmp_path / "tell"
    job = subprocess.Popen(
        [PYTHON, "-m", "stepscope.cli", "run", "-o", str(run), "--", PYTHON, str(JOB), "launch", "2", "until told"],
        env={**os.environ, **environment, "STEPS": "100000", "TELL": str(tell)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        _until((run / ".stepscope" / "rank-00001.json").exists)
        for number in (1, 2):
            done = stepscope("profile", "--attach", str(run), "--steps", "2")
            assert done.code == 0, done.err
            traces = sorted((run / f"window-{number}").iterdir())
            assert len(traces) == 2
            assert _steps(traces[0]) == _steps(traces[1])
        assert job.poll() is None
        tell.touch()
        assert job.wait(timeout=30) == 0
    finally:
        if job.poll() is None:
            job.send_signal(signal.SIGTERM)
        job.communicate()
    ended = stepscope("profile", "--attach", str(run))
    assert (ended.code, "this job has ended" in ended.err) == (2, True)


@pytest.mark.parametrize(("version", "suffix"), [("new", ".nsys-rep"), ("old", ".qdrep")])
def test_nsys_records_the_window_of_every_rank(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str], version: str, suffix: str
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "nsys").symlink_to(Path(__file__).parent / "fake_nsys.py")
    each = f'RANK=$r SLURM_PROCID=$r WORLD_SIZE=2 MEETING={tmp_path} "$@"'
    (tmp_path / "bin" / "srun").write_text(f"#!/bin/sh\nfor r in 0 1; do {each} & done; wait\n")
    (tmp_path / "bin" / "srun").chmod(0o755)
    made = export(tmp_path / "made.sqlite", *STRINGS, *KERNELS, *CALLS)
    more = {
        "PATH": f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}", "FAKE_GPU": "1",
        "FAKE_NSYS_VERSION": version, "FAKE_NSYS_EXPORT": str(made),
    }  # fmt: skip
    out = tmp_path / "p"
    line = ["profile", "--nsys", "--wait", "5", "--steps", "2", "-o", str(out), "--", "srun", PYTHON, str(JOB), "plain"]
    done = stepscope(*line, **environment, **more)
    assert done.code == 0, done.err
    assert "nsys 202" in done.err
    assert "%q{SLURM_PROCID}" in done.err
    assert done.out.count("trained 40 steps") == 2
    for rank in (0, 1):
        told = (out / "window-1" / f"rank-{rank}{suffix}").read_text().splitlines()
        assert told == ["start", "push ProfilerStep#6", "pop", "push ProfilerStep#7", "pop", "stop"]
    assert "2 ranks" in done.out
    assert "profiled: steps 7 to 8 of 2 ranks" in done.out


def test_nsys_is_refused_where_it_cannot_record(stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]) -> None:
    line = ["profile", "--nsys", "--wait", "5", "-o", str(tmp_path / "p"), "--", PYTHON, str(JOB), "plain"]
    without = stepscope(*line, **environment, PATH=str(tmp_path))
    assert (without.code, "nsys is not installed" in without.err) == (3, True)
    (tmp_path / "nsys").symlink_to(Path(__file__).parent / "fake_nsys.py")
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    done = stepscope(*line, **environment, PATH=path)
    assert (done.code, "this torch sees no GPU" in done.err) == (0, True), done.err
    assert "trained 40 steps" in done.out


def test_a_job_out_of_memory_leaves_snapshots_and_their_verdict(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str]
) -> None:
    out = tmp_path / "p"
    line = ["profile", "--memory", "--steps", "3", "--wait", "5", "-o", str(out), "--", PYTHON, str(JOB), "launch", "2"]
    done = stepscope(*line, "out of memory", **environment, FAKE_GPU="1")
    assert done.code == 1
    assert "stepscope_hook" not in done.err
    assert "OutOfMemoryError: tried to allocate 50000 bytes" in done.err
    assert "1 request failed: 48.8 KiB wanted with 47.4 KiB left in the driver" in done.out
    for rank in (0, 1):
        snapshots = [
            pickle.loads((out / "memory" / f"{name}-rank-{rank:05d}.pickle").read_bytes())
            for name in ("window-1", "oom")
        ]
        facts = [each["stepscope"] for each in snapshots]
        assert [each["rank"] for each in facts] == [rank, rank]
        assert [each["step"] for each in facts] == [9, 20]  # 5 before, 1 of warm-up, 3 profiled
        assert facts[1]["requested_bytes"] == 50_000
        held = [sum(e["size"] for e in s["device_traces"][0] if e["action"] == "alloc") for s in snapshots]
        assert held == [450_000, 1_000_000]


@pytest.mark.parametrize(
    ("options", "gpu", "said"),
    [([], "1", None), (["--memory"], "refuses", "no memory history: RuntimeError: no history here")],
)
def test_no_history_is_kept_unless_asked_and_possible(
    stepscope: Cli, tmp_path: Path, environment: Mapping[str, str], options: list[str], gpu: str, said: str | None
) -> None:
    line = ["run", *options, "-o", str(tmp_path / "p"), "--", PYTHON, str(JOB), "out of memory"]
    done = stepscope(*line, **environment, FAKE_GPU=gpu, STEPS="5")
    assert (done.code, done.out) == (0, "trained 5 steps\n")
    assert len(done.err.splitlines()) == 1 + (said is not None)
    assert said is None or said in done.err


def _until(holds: object, *, limit_s: float = 30.0) -> None:
    limit = time.monotonic() + limit_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < limit
        time.sleep(0.02)

"""`stepscope profile` and `run` on jobs with a stand-in for torch: they start in milliseconds, and can go wrong at will."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import signal
from pathlib import Path

import pytest
from tests.e2e.profiled import FAKE_TORCH, JOB, PYTHON, WAIT_9, Profiled, end_of
from tests.e2e.runs import Cli, Here, wait_for
from tests.unit.traces.test_nsys import CALLS, KERNELS, STRINGS, export

from stepscope.store.reader import steps_in

pytestmark = pytest.mark.e2e


def _steps(trace: Path) -> list[str]:
    document = json.loads(gzip.decompress(trace.read_bytes()))
    return [e["name"] for e in document["traceEvents"] if e["cat"] == "user_annotation"]


def _spans(*numbers: int) -> list[str]:
    return [f"ProfilerStep#{n}" for n in numbers]


def _first(folder: Path) -> Path:
    return folder / "window-1" / "rank-00000.json.gz"


def _ranks_agree(folder: Path, ranks: int) -> list[str]:
    traces = sorted((folder / "window-1").glob("rank-*.json.gz"))
    assert len(traces) == ranks
    steps = [_steps(trace) for trace in traces]
    assert all(each == steps[0] for each in steps), steps
    return steps[0]


def test_every_rank_profiles_the_same_steps_of_an_unchanged_job(profile: Profiled) -> None:
    done = profile("launch", "3", "plain", options=("--steps", "4"))
    assert done.out.count("trained 40 steps") == 3
    assert len(_ranks_agree(profile.out, 3)) == 4
    verdict = json.loads((profile.out / "verdict.json").read_text())
    assert min(verdict["profiled_step_ns"], verdict["step_ns"]) > 0
    assert [rank["rank"] for rank in profile.cli("trace", str(profile.out), "--json").json()["ranks"]] == [0, 1, 2]


@pytest.mark.parametrize(("mode", "code"), [("plain", 0), ("exits", 7)])
def test_ranks_that_a_launcher_forks_are_profiled(profile: Profiled, mode: str, code: int) -> None:
    profile("fork ranks", "2", mode, options=WAIT_9, code=code)
    assert len(_ranks_agree(profile.out, 2)) == (3 if mode == "plain" else 2)  # the second is unfinished


def test_ranks_chosen_are_profiled_and_no_other(profile: Profiled) -> None:
    profile("launch", "3", "plain", options=("--ranks", "0,2"))
    assert sorted(p.name for p in (profile.out / "window-1").iterdir()) == ["rank-00000.json.gz", "rank-00002.json.gz"]


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
def test_a_job_that_cannot_be_profiled_ends_as_without_us(profile: Profiled, mode: str, code: int, said: str) -> None:
    done = profile(mode, options=WAIT_9, code=code)
    assert said in done.err
    assert ("trained" in done.out) == (code == 0)
    assert "stepscope_hook" not in done.err  # no traceback of ours


@pytest.mark.parametrize(
    ("mode", "options", "code", "spans"),
    [
        ("plain", ("--steps", "3", "--wait", "12", "--warmup", "2"), 0, _spans(14, 15, 16)),
        ("forks", WAIT_9, 0, _spans(10, 11, 12)),
        ("exits", WAIT_9, 7, [*_spans(10), "unfinished step"]),
        ("two optimizers", ("--steps", "3", "--wait", "5"), 0, _spans(6, 7, 8)),
        ("two optimizers", ("--steps", "3", "--wait", "5", "--step-optimizer", "2"), 0, _spans(6, 7, 8)),
    ],
)
def test_steps_are_the_optimizers_of_the_rank_itself_from_where_wait_says(
    profile: Profiled, mode: str, options: tuple[str, ...], code: int, spans: list[str]
) -> None:
    """A fork's do not count; a job that exits keeps its code and its whole steps."""
    profile(mode, options=options, code=code)
    assert _steps(_first(profile.out)) == spans


def test_an_optimizer_that_the_job_does_not_have_leaves_no_trace(profile: Profiled) -> None:
    assert "no trace: " in profile("two optimizers", options=("--step-optimizer", "3")).err


def test_a_rank_killed_inside_the_window_is_named(profile: Profiled) -> None:
    done = profile("launch", "2", "rank 1 killed", options=WAIT_9, code=None)
    assert "! rank 1 (" in done.out
    assert "the rank ended inside the window" in done.out
    assert "trained 40 steps" in done.out  # rank 0 goes on


def test_a_job_without_an_optimizer_is_profiled_for_a_time(profile: Profiled) -> None:
    done = profile("forwards", options=("--duration", "0.02", "--after", "0.01", "--tables"))
    assert "Time budget" in done.out


def test_the_sitecustomize_that_ours_shadows_runs_and_sees_its_own_path(profile: Profiled, tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys; sys.stdout.write(f'theirs: {__file__}, {sys.path}\\n')")
    done = profile("plain", PYTHONPATH=os.pathsep.join([str(theirs), FAKE_TORCH["PYTHONPATH"]]))
    line = next(line for line in done.out.splitlines() if line.startswith("theirs: "))
    assert str(theirs / "sitecustomize.py") in line
    assert "stepscope/hook" not in line


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ([PYTHON, "-I", "-c", "print('no torch')"], "Python ignores the environment with -I"),
        ([PYTHON, "-c", "print('no torch')"], "no process of the job imported torch"),
    ],
)
def test_a_hook_that_reaches_no_rank_says_what_to_do(cli: Cli, tmp_path: Path, command: list[str], said: str) -> None:
    done = cli("profile", "-o", str(tmp_path / "p"), "--", *command)
    assert done.code == 0
    assert said in done.err
    assert "fix: " in done.err


def test_a_job_outlasts_the_reader_of_its_results(profile: Profiled) -> None:
    """``profile ... | head -1``: the job is waited for, whoever reads what stepscope shows."""
    process = profile.start("exits", options=WAIT_9)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(timeout=100) == 7, "the job's own code, which only who waits for it knows"
    process.stderr.close()


def test_ranks_that_the_job_does_not_have_are_named(profile: Profiled, tmp_path: Path) -> None:
    done = profile("launch", "2", "plain", options=("--ranks", "5"))
    assert done.out.count("trained 40 steps") == 2
    assert "no trace: there is no rank 5: the job has ranks 0-1\n  fix: choose other --ranks" in done.err
    some = Profiled(profile.cli, tmp_path / "q")
    assert "! there is no rank 5: the job has ranks 0-1" in some("launch", "2", "plain", options=("--ranks", "1,5")).out
    assert [path.name for path in (some.out / "window-1").iterdir()] == ["rank-00001.json.gz"]


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_profile_blames_no_optimizer_and_keeps_its_steps(
    profile: Profiled, signum: int, code: int
) -> None:
    process = profile.start("plain", options=("--wait", "99999"), STEPS="100000")
    diary = profile.out / ".stepscope" / "diary-00000-0.bin"
    wait_for(lambda: steps_in(diary), process)
    process.send_signal(signum)
    _, err = process.communicate(timeout=100)
    assert process.returncode == code, err
    assert "no trace: interrupted before the window" in err
    assert "made a step" not in err
    end = end_of(profile.out)
    assert (end.kind, end.signal) == ("interrupted", signal.Signals(signum).name)
    assert end.steps_timed == steps_in(diary) > 0


def test_a_job_that_left_nothing_does_not_block_its_folder(profile: Profiled) -> None:
    failing = [PYTHON, "-c", "raise SystemExit(4)"]
    profile.around(*failing, code=4)
    said = profile.cli("diagnose", str(profile.out), "--json")
    assert (said.code, said.json()["verdict"]["kind"]) == (0, "crash")
    profile("plain", options=WAIT_9)
    assert "not an empty folder" in profile.around(*failing, code=2).err
    assert len(_ranks_agree(profile.out, 1)) == 3


def test_mistakes_start_nothing(here: Here, tmp_path: Path) -> None:
    out = tmp_path / "p"
    (tmp_path / "thesis.txt").touch()
    for line, said in (
        (["-o", str(out), "--", "no-such-program"], "no-such-program' cannot be started"),
        (["-o", str(out)], "profile needs a command"),
        (["-o", str(tmp_path), "--wait", "soon", "--", "true"], "is neither auto nor a whole number"),
        (["--attach", str(tmp_path / "none")], "is not the folder of a job"),
        (["--attach", str(tmp_path), "--", "true"], "and both are given"),
        (["-o", str(tmp_path), "--", "true"], "not an empty folder"),
    ):
        done = here("profile", *line)
        assert (done.code, said in done.err) == (2, True), (line, done.err)
    assert not out.exists()


def test_a_window_whose_folder_cannot_be_written_is_reported_and_the_job_goes_on(profile: Profiled) -> None:
    blocked = [PYTHON, "-c", f"open({str(profile.out / 'window-1')!r}, 'w'); import sys, runpy; sys.argv = ['job', 'plain'];"
               f"runpy.run_path({JOB[1]!r}, run_name='__main__')"]  # fmt: skip
    done = profile.around(*blocked)
    assert "trained 40 steps" in done.out
    assert "the trace cannot be written" in done.err


def test_a_running_job_is_profiled_as_often_as_wanted(profile: Profiled, tmp_path: Path) -> None:
    tell = tmp_path / "tell"
    job = profile.start("launch", "2", "until told", command="run", STEPS="100000", TELL=str(tell))
    wait_for((profile.out / ".stepscope" / "rank-00001.json").exists, job)
    for number in (1, 2):
        done = profile.cli("profile", "--attach", str(profile.out), "--steps", "2")
        assert done.code == 0, done.err
        first, second = sorted((profile.out / f"window-{number}").iterdir())
        assert _steps(first) == _steps(second)
    assert job.poll() is None
    tell.touch()
    job.communicate(timeout=30)
    assert job.returncode == 0
    ended = profile.cli("profile", "--attach", str(profile.out))
    assert (ended.code, "this job has ended" in ended.err) == (2, True)


@pytest.mark.parametrize(("version", "suffix"), [("new", ".nsys-rep"), ("old", ".qdrep")])
def test_nsys_records_the_window_of_every_rank(profile: Profiled, tmp_path: Path, version: str, suffix: str) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "nsys").symlink_to(Path(__file__).parent / "fake_nsys.py")
    each = f'RANK=$r SLURM_PROCID=$r WORLD_SIZE=2 MEETING={tmp_path} "$@"'
    (programs / "srun").write_text(f"#!/bin/sh\nfor r in 0 1; do {each} & done; wait\n")
    (programs / "srun").chmod(0o755)
    made = export(tmp_path / "made.sqlite", *STRINGS, *KERNELS, *CALLS)
    done = profile.around(
        "srun", *JOB, "plain", options=("--nsys", "--wait", "5", "--steps", "2"), FAKE_GPU="1", FAKE_NSYS_VERSION=version,
        FAKE_NSYS_EXPORT=str(made), PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
    )  # fmt: skip
    assert "%q{SLURM_PROCID}" in done.err
    assert done.out.count("trained 40 steps") == 2
    for rank in (0, 1):
        told = (profile.out / "window-1" / f"rank-{rank}{suffix}").read_text().splitlines()
        assert told == ["start", "push ProfilerStep#6", "pop", "push ProfilerStep#7", "pop", "stop"]
    assert "2 profiled" in done.out


def test_nsys_is_refused_where_it_cannot_record(profile: Profiled, tmp_path: Path) -> None:
    options = ("--nsys", "--wait", "5")
    assert "nsys is not installed" in profile("plain", options=options, code=3, PATH=str(tmp_path)).err
    (tmp_path / "nsys").symlink_to(Path(__file__).parent / "fake_nsys.py")
    done = profile("plain", options=options, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert "this torch sees no GPU" in done.err
    assert "trained 40 steps" in done.out


def test_a_job_out_of_memory_leaves_snapshots_and_their_verdict(profile: Profiled) -> None:
    options = ("--memory", "--steps", "3", "--wait", "5")
    done = profile("launch", "2", "out of memory", options=options, code=1, FAKE_GPU="1")
    assert "stepscope_hook" not in done.err
    assert "ranks 0, 1 raised torch.cuda.OutOfMemoryError: tried to allocate 50000 bytes" in done.out
    assert "1 request failed: 48.8 KiB wanted with 47.4 KiB left in the driver" in done.out
    for rank in (0, 1):
        files = [profile.out / "memory" / f"{name}-rank-{rank:05d}.pickle" for name in ("window-1", "oom")]
        snapshots = [pickle.loads(file.read_bytes()) for file in files]
        facts = [each["stepscope"] for each in snapshots]
        assert [(each["rank"], each["step"]) for each in facts] == [
            (rank, 9),
            (rank, 20),
        ]  # 5 before, 1 warm-up, 3 profiled
        assert facts[1]["requested_bytes"] == 50_000
        held = [sum(e["size"] for e in s["device_traces"][0] if e["action"] == "alloc") for s in snapshots]
        assert held == [450_000, 1_000_000]


@pytest.mark.parametrize(
    ("options", "gpu", "said"),
    [((), "1", None), (("--memory",), "refuses", "no memory history: RuntimeError: no history here")],
)
def test_no_history_is_kept_unless_asked_and_possible(
    profile: Profiled, options: tuple[str, ...], gpu: str, said: str | None
) -> None:
    done = profile("out of memory", options=(*options, "--verdict", "verdict"), command="run", FAKE_GPU=gpu, STEPS="5")
    assert done.out == "trained 5 steps\n"
    assert len(done.err.splitlines()) == 1 + (said is not None)
    assert said is None or said in done.err


@pytest.mark.parametrize("command", ["run", "profile"])
@pytest.mark.parametrize(
    ("mode", "condition", "code", "unchecked"),
    [
        ("plain", "diary_step_ns > 1e6", 6, False),
        ("plain", "diary_step_ns > 1e12", 0, False),
        ("plain", "lowest_speedup < 1", 0, True),
        ("exits", "diary_step_ns > 1e6", 7, True),
        ("no step", "diary_step_ns > 1e6", 0, True),
    ],
)
def test_a_condition_fails_a_job_that_ended_well(
    profile: Profiled, command: str, mode: str, condition: str, code: int, unchecked: bool
) -> None:
    done = profile(mode, options=("--fail-if", condition), command=command, code=code)
    assert (f"--fail-if '{condition}' was not checked" in done.err) == unchecked
    assert ("error: failed" in done.err) == (code == 6)


def test_a_condition_is_read_before_the_job_starts(profile: Profiled) -> None:
    done = profile("plain", options=("--fail-if", "input >"), command="run", code=2)
    assert "trained" not in done.out
    assert not profile.out.exists()

"""Every planted job alone, then under `profile`, graded; the table and the totals beside the bars."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks._report import heading
from benchmarks.own_jobs.grading import Grade, Said, as_json, grade, read_said
from benchmarks.own_jobs.planted import PLANTED, Planted, frameworks_folder
from benchmarks.own_jobs.running import run_command
from benchmarks.own_jobs.truth import Truth, measure
from stepscope.core.dataclass import dataclass

SLOW_RANKS = ("slow_rank_of_2", "slow_rank_of_4", "slow_backward")
ENDS = ("crash", "exit_1", "hang", "killed", "import_error", "three_steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One profiled run of a job. left: processes that it left behind; notes: what went wrong with the command itself."""

    job: str
    said: Said
    grade: Grade
    wall_s: float
    left: int
    notes: tuple[str, ...] = ()


def run(arguments: Sequence[str]) -> None:
    """The suite with these options."""
    options = _options(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # then what was started is ended too
    jobs = _chosen(options.only)
    heading(
        f"own jobs: {len(jobs)} planted jobs, {options.repeat} times each{', one core busy' if options.busy else ''}"
    )
    frameworks = frameworks_folder()
    runs: list[Run] = []
    truths: dict[str, Truth] = {}
    with _folder(options.keep) as folder, _busy_core(options.busy):
        for job in jobs:
            if reason := job.missing(frameworks):
                print(f"{job.name:<18} skipped: {reason}", flush=True)
                continue
            extra = {"PYTHONPATH": str(frameworks)} if job.needs and frameworks else {}
            truth = measure(job, rounds=options.truths, folder=folder / job.name, extra=extra)
            truths[job.name] = truth
            print(f"{job.name:<18} {_truth_words(job, truth)}", flush=True)
            for number in range(options.repeat):
                done = profiled(
                    job, truth, folder=folder / job.name / f"run-{number}", extra=extra,
                    contended=options.busy or options.shared,
                )  # fmt: skip
                runs.append(done)
                print(f"{'':<18} {_run_words(done)}", flush=True)
    _table(runs)
    _totals(runs, busy=options.busy)
    if options.json:
        rows = [{**_plain(each), "truth": _plain(truths[each.job])} for each in runs]
        Path(options.json).write_text(json.dumps(rows, indent=1))


def profiled(job: Planted, truth: Truth, *, folder: Path, extra: dict[str, str], contended: bool) -> Run:
    """The job under `stepscope profile`, and what was said of it."""
    out, text = folder / "profile", folder / "verdict.txt"
    folder.mkdir(parents=True)
    stepscope = [sys.executable, "-m", "stepscope.cli"]
    command = [*stepscope, "profile", "-o", str(out), "--verdict", str(text), *job.options, "--", *job.command()]
    done = run_command(command, timeout_s=job.timeout_s, folder=folder, extra=extra)
    asked = run_command(
        [*stepscope, "diagnose", str(out), "--json"], timeout_s=60, folder=folder / "diagnose", extra={}
    )  # fmt: skip
    diagnosis = as_json(asked.out)
    written = out / "verdict.json"
    verdict = as_json(written.read_text()) if written.exists() else diagnosis.get("verdict")
    said = read_said(verdict.get("verdict", verdict) if verdict else None, diagnosis)
    notes = [f"no answer after {job.timeout_s:.0f} s"] if done.code is None else []
    notes += [f"diagnose: exit {asked.code}"] if not diagnosis else []
    notes += ["Traceback of stepscope"] if "stepscope/cli/" in done.err and "Traceback" in done.err else []
    return Run(
        job=job.name, said=said, wall_s=done.wall_s, left=done.left, notes=tuple(notes),
        grade=grade(job, truth, said, code=done.code, out=done.out, contended=contended),
    )  # fmt: skip


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.own_jobs", description=__doc__)
    parser.add_argument("--repeat", type=int, default=1, help="profiled runs of each job")
    parser.add_argument("--truths", type=int, default=2, help="rounds of A/B, without stepscope; 0: none")
    parser.add_argument("--only", help="names of jobs, with commas")
    parser.add_argument("--busy", action="store_true", help="keep one core busy meanwhile")
    parser.add_argument(
        "--shared", action="store_true", help="others use this machine: a contended machine may be said"
    )
    parser.add_argument("--json", metavar="FILE", help="write every run and its truth")
    parser.add_argument("--keep", metavar="DIR", help="keep outputs, traces and diaries here")
    return parser.parse_args(list(arguments))


def _chosen(only: str | None) -> list[Planted]:
    if not only:
        return list(PLANTED)
    by_name = {job.name: job for job in PLANTED}
    names = only.split(",")
    if unknown := [name for name in names if name not in by_name]:
        sys.exit(f"unknown job {', '.join(unknown)}; known: {', '.join(by_name)}")
    return [by_name[name] for name in names]


@contextmanager
def _folder(keep: str | None) -> Iterator[Path]:
    folder = Path(keep).absolute() if keep else Path(tempfile.mkdtemp(prefix="own-jobs-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _busy_core(wanted: bool) -> Iterator[None]:
    if not wanted:
        yield
        return
    watch = f"import os\nwhile os.getppid() == {os.getpid()}:\n    sum(range(100000))"
    spinning = subprocess.Popen([sys.executable, "-c", watch])
    try:
        yield
    finally:
        spinning.kill()
        spinning.wait()


def _truth_words(job: Planted, truth: Truth) -> str:
    step = "" if truth.step_s is None else f"step {truth.step_s * 1e3:.1f} ms"
    if truth.low is None or truth.high is None or truth.spread is None:
        return f"{step} exit {truth.code}".strip()
    size = f"{truth.low:.1%}" if truth.low == truth.high else f"{truth.low:.1%} to {truth.high:.1%}"
    return f"{step}, planted {size} of the {job.of} (rounds within {truth.spread:.1%})"


def _run_words(run: Run) -> str:
    stake = "" if run.said.stake is None else f", stake {run.said.stake:.1%}"
    what = f"{run.said.kind}{f' of rank {list(run.said.ranks)}' if run.said.ranks else ''}{stake}"
    marks = [
        "right" if run.grade.right else "WRONG",
        *([] if run.grade.stake_ok is None else ["stake ok" if run.grade.stake_ok else "STAKE OFF"]),
        *(f"FALSE {each}" for each in run.grade.false),
        *([] if run.grade.job_equal else ["JOB CHANGED"]),
        *([f"{run.left} processes left"] if run.left else []),
        *run.notes,
    ]
    return f"{run.wall_s:.0f} s: {what} · {' · '.join(marks)}"


def _table(runs: Sequence[Run]) -> None:
    print(f"\n{'job':<18} {'runs':>4} {'right':>5} {'stake':>7} {'false':>5} {'equal':>5}  said wrong")
    for name in dict.fromkeys(run.job for run in runs):
        mine = [run for run in runs if run.job == name]
        graded = [run.grade.stake_ok for run in mine if run.grade.stake_ok is not None]
        wrong = dict.fromkeys([run.said.kind or run.said.headline or "nothing" for run in mine if not run.grade.right])
        wrong |= dict.fromkeys(each for run in mine for each in run.grade.false)
        print(
            f"{name:<18} {len(mine):>4} {sum(run.grade.right for run in mine):>5} "
            f"{f'{sum(graded)}/{len(graded)}' if graded else '-':>7} {sum(bool(run.grade.false) for run in mine):>5} "
            f"{sum(run.grade.job_equal for run in mine):>5}  {'; '.join(wrong)}"
        )


def _totals(runs: Sequence[Run], *, busy: bool) -> None:
    def line(what: str, chosen: Sequence[Run], holds: Callable[[Run], bool], bar: str) -> None:
        if chosen:
            count = sum(holds(run) for run in chosen)
            print(f"{what:<42} {count:>4} of {len(chosen):<4} {count / len(chosen):>6.1%}   bar {bar}")

    print()
    line("first verdict right", runs, lambda run: run.grade.right, "90 %" if busy else "95 %")
    staked = [run for run in runs if run.grade.stake_ok is not None]
    line("stake within 20 % of the truth", staked, lambda run: bool(run.grade.stake_ok), "80 %" if busy else "90 %")
    line("runs that say something false", runs, lambda run: bool(run.grade.false), "4 %" if busy else "2 %")
    line(
        "straggler, clock, imbalance on clean jobs", [run for run in runs if run.job.startswith("clean")],
        lambda run: run.grade.accused, "2 %" if busy else "1 %",
    )  # fmt: skip
    line("slow rank named", [run for run in runs if run.job in SLOW_RANKS], lambda run: run.grade.right, "19 of 20")
    line(
        "ends told by cause and rank", [run for run in runs if run.job in ENDS], lambda run: run.grade.right, "20 of 20"
    )
    line("exit code and output as of the job alone", runs, lambda run: run.grade.job_equal, "all")


def _plain(record: object) -> dict[str, object]:
    from dataclasses import asdict

    return asdict(record)  # type: ignore[call-overload]

"""Every step watched: planted jobs under `stepscope run` and under traceml-ai, graded by each job's own clock.

TRACEML names the folder of a virtual environment with traceml-ai 0.5.0 and the same torch; without it that column is empty.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._report import heading
from benchmarks.own_jobs.grading import ACCUSING_KINDS, as_json
from benchmarks.own_jobs.planted import BASE, JOBS, LATE, PLANTED, Planted, frameworks_folder
from benchmarks.own_jobs.running import Ended, run_command
from benchmarks.own_jobs.truth import Truth, measure
from stepscope.core.dataclass import dataclass
from stepscope.diagnose.narrator import noun

COSTS_OF_ALL = "contended-machine"
"""Said first where others use the cores (--shared); then the next cost is graded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """bar: in words. holds: (verdict of ours, truth, stderr of the command) -> whether the bar is reached."""

    job: Planted
    bar: str
    holds: Callable[[Mapping[str, Any], Truth, str], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One run under a tool. after_s: from the end of the last rank to that of the command; None: no rank left its clock."""

    said: str
    right: bool
    accused: bool
    wall_s: float
    after_s: float | None
    bytes_a_step: float | None


def _costs(verdict: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [each for each in verdict.get("costs", ()) if each["kind"] != COSTS_OF_ALL]


def _first(verdict: Mapping[str, Any]) -> Mapping[str, Any]:
    return next(iter(_costs(verdict)), {"kind": "compute-bound", "share": {"value": 0.0}, "ranks": []})


def _near(kind: str, points: float) -> Callable[[Mapping[str, Any], Truth, str], bool]:
    def holds(verdict: Mapping[str, Any], truth: Truth, _: str) -> bool:
        cost = _first(verdict)
        if truth.low is None or truth.high is None:
            return False
        low, high = truth.low - points, truth.high + points
        return bool(cost["kind"] == kind and low <= cost["share"]["value"] <= high)

    return holds


def _slow_backward(verdict: Mapping[str, Any], _: Truth, __: str) -> bool:
    cost = _first(verdict)
    planted_ns = 5e6
    return cost["kind"] in LATE and cost["ranks"] == [1] and abs((cost["excess_ns"] or 0) / planted_ns - 1) <= 0.2


def _stall(verdict: Mapping[str, Any], truth: Truth, _: str) -> bool:
    cost = _first(verdict)
    near = truth.low is not None and abs(cost["share"]["value"] - truth.low) <= 0.03
    long = abs((cost.get("event_ns") or 0) - 3e8) <= 3e7
    return bool(cost["kind"] == "input-bound" and cost["period"] == 20 and long and near)


def _leak(verdict: Mapping[str, Any], _: Truth, __: str) -> bool:
    growth = (verdict.get("memory") or {}).get("growth", ())
    return any(abs(each["per_step"]["value"] / 2**20 - 1) <= 0.2 for each in growth)


def _clean(verdict: Mapping[str, Any], _: Truth, __: str) -> bool:
    return not accuses(verdict)


def accuses(verdict: Mapping[str, Any]) -> bool:
    """Whether ranks are said to be slow, or one is named: none of these jobs saves, evaluates or fails."""
    every = ({"kind": verdict.get("kind")}, *verdict.get("costs", ()))
    return any(each["kind"] in ACCUSING_KINDS or bool(each.get("ranks")) for each in every)


def accuses_meanwhile(stderr: str) -> bool:
    """The same of the lines that were said while the job ran."""
    named = tuple(map(noun, ACCUSING_KINDS))
    lines = (line.partition(": ")[2] for line in stderr.splitlines() if line.startswith("after "))
    return any(line.startswith(named) for line in lines)


def _watched(name: str, *arguments: str, **more: Any) -> Planted:
    return Planted(name=name, script="watched", shape="DDP", arguments=arguments, **more)


_SUITE = {job.name: job for job in PLANTED}
_CLEAN = tuple(
    Row(job=job, bar="nobody is accused", holds=_clean)
    for job in (
        _watched("clean_loader", "--clean", "--steps", "100", verdicts=BASE),
        *(_SUITE[name] for name in ("clean_ddp", "clean_fsdp2", "clean_tp", "clean_hf_trainer", "clean_lightning")),
        Planted(name="clean_pp", script="pipeline", shape="pipeline", verdicts=("pipeline-bubble", *BASE)),
    )
)
ROWS = (
    Row(job=_SUITE["slow_loader"], bar="input-bound, +- 2 points", holds=_near("input-bound", 0.02)),
    Row(
        job=_watched("slow_backward", "--plant", "backward", "--steps", "120", verdicts=LATE, ranks=(1,)),
        bar="rank 1 first, 5 ms +- 20 %, 100 steps", holds=_slow_backward,
    ),
    Row(
        job=_watched("stall", "--plant", "stall", verdicts=("input-bound",), of="wall", every=20),
        bar="every 20 steps, 300 ms of data, +- 3 points", holds=_stall,
    ),
    Row(
        job=_watched("leak", "--plant", "leak", verdicts=BASE), bar="+1.0 MiB a step by step 300", holds=_leak,
    ),
    Row(
        job=_SUITE["big_optimizer"], bar="the optimizer first",
        holds=lambda verdict, _, __: _first(verdict)["kind"] in ("optimizer-bound", "memory-bound"),
    ),
    *(
        Row(
            job=_SUITE[name], bar="communication first",
            holds=lambda verdict, _, __: _first(verdict)["kind"] == "communication-bound",
        )
        for name in ("tiny_allreduces", "fsdp2_small_units")
    ),
    Row(
        job=_SUITE["killed"], bar="rank 1, SIGKILL, step 120",
        holds=lambda verdict, _, __: verdict.get("kind") == "killed" and verdict["ranks"] == [1],
    ),
    Row(
        job=_SUITE["hang"], bar="<= 30 s: rank, line",
        holds=lambda verdict, _, err: verdict.get("kind") == "hang" and "the job hangs" in err,
    ),
    *_CLEAN,
)  # fmt: skip


def main(arguments: Sequence[str] = ()) -> None:
    """Run the rows; `python -m benchmarks.monitor_vs_traceml --help` shows the options."""
    options = _options(arguments)
    rows = [row for row in ROWS if not options.only or row.job.name in options.only.split(",")]
    peer = Path(os.environ["TRACEML"]) if "TRACEML" in os.environ and not options.alone else None
    heading(f"every step watched: {len(rows)} jobs, {options.repeat} times, beside {peer or 'nobody'}")
    with tempfile.TemporaryDirectory(prefix="monitor-vs-") as folder:
        found = [_row(row, options.repeat, options.truths, peer, Path(folder) / row.job.name) for row in rows]
    clean = [each for row, ours in zip(rows, found, strict=True) if row in _CLEAN for each in ours]
    if clean:
        print(f"false accusations: {sum(each.accused for each in clean)} of {len(clean)} clean runs; bar 0")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.monitor_vs_traceml", description=__doc__)
    parser.add_argument("--repeat", type=int, default=20, help="runs of each job under each tool")
    parser.add_argument("--truths", type=int, default=2, help="rounds of A/B without a tool, at least 1")
    parser.add_argument("--only", help="names of jobs, with commas")
    parser.add_argument("--alone", action="store_true", help="not beside traceml")
    return parser.parse_args(list(arguments))


def _row(row: Row, repeat: int, truths: int, peer: Path | None, folder: Path) -> list[Watched]:
    frameworks = frameworks_folder()
    if reason := row.job.missing(frameworks):
        print(f"{row.job.name}: skipped: {reason}", flush=True)
        return []
    extra = {"PYTHONPATH": str(frameworks)} if row.job.needs and frameworks else {}
    truth = measure(row.job, rounds=max(truths, 1), folder=folder / "alone", extra=extra)
    planted = "" if truth.low is None else f", planted {truth.low:.1%}"
    step = "" if truth.step_s is None else f"step {truth.step_s * 1e3:.1f} ms"
    print(f"{row.job.name}: {step}{planted}; bar: {row.bar}; load {os.getloadavg()[0]:.1f}", flush=True)
    ours = [_ours(row, truth, folder / f"ours-{number}", extra) for number in range(repeat)]
    _print("stepscope", ours, repeat)
    if peer is not None:
        theirs = [_peer(row.job, peer, folder / f"peer-{number}", extra) for number in range(repeat)]
        _print("traceml", [each for each in theirs if each is not None], repeat)
    shutil.rmtree(folder, ignore_errors=True)
    return ours


def _print(tool: str, runs: Sequence[Watched], repeat: int) -> None:
    if not runs:
        print(f"  {tool:<10} cannot run it", flush=True)
        return
    graded = f"{sum(each.right for each in runs)} of {repeat} right; " if tool == "stepscope" else ""
    after = [each.after_s for each in runs if each.after_s is not None]
    size = [each.bytes_a_step for each in runs if each.bytes_a_step is not None]
    print(
        f"  {tool:<10} {graded}{statistics.median(each.wall_s for each in runs):.1f} s"
        f"{f', {statistics.median(after):.2f} s after the last rank' if after else ''}"
        f"{f', {statistics.median(size):.0f} bytes a step and rank' if size else ''}",
        flush=True,
    )
    for said in dict.fromkeys(each.said for each in runs):
        print(f"    {sum(each.said == said for each in runs)} x {said}", flush=True)


def _ours(row: Row, truth: Truth, folder: Path, extra: Mapping[str, str]) -> Watched:
    stepscope, out = [sys.executable, "-m", "stepscope.cli"], folder / "run"
    watched = ["--hang-after", "15"] if "hang" in row.job.verdicts else []
    done, after_s, steps = _clocked([*stepscope, "run", "-o", str(out), *watched, "--", *row.job.command()],
                                    row.job, folder, extra)  # fmt: skip
    asked = run_command([*stepscope, "diagnose", str(out), "--json"], timeout_s=60, folder=folder / "ask", extra={})
    verdict = as_json(asked.out).get("verdict") or {}
    lines = [str(cost["line"]) for cost in _costs(verdict)]
    size = sum(each.stat().st_size for each in (out / ".stepscope").glob("diary-*"))
    headline = str(verdict.get("headline", f"no verdict: {asked.err.strip()[-200:]}"))
    said = headline if verdict.get("kind") != COSTS_OF_ALL else f"(contended) {lines[0] if lines else 'nothing more'}"
    return Watched(
        said=said, right=bool(verdict) and row.holds(verdict, truth, done.err),
        accused=accuses(verdict) or accuses_meanwhile(done.err), wall_s=done.wall_s, after_s=after_s,
        bytes_a_step=size / steps if steps else None,
    )  # fmt: skip


def _clocked(
    command: Sequence[str], job: Planted, folder: Path, extra: Mapping[str, str]
) -> tuple[Ended, float | None, int]:
    """(the command's end, seconds from the last rank's to that, steps of all ranks) by the clocks that ranks leave."""
    clocks = folder / "clocks"
    clocks.mkdir(parents=True)
    done = run_command(command, timeout_s=job.timeout_s, folder=folder, extra={**extra, "OWN_JOBS_TRUTH": str(clocks)})
    left = list(clocks.iterdir())
    last = max((each.stat().st_mtime for each in left), default=None)
    steps = sum(len(json.loads(each.read_text())) for each in left)
    return done, None if last is None else _now(folder) - last, steps


def _now(folder: Path) -> float:
    """By the clock of this folder's files."""
    (mark := folder / "now").touch()
    return mark.stat().st_mtime


def _peer(job: Planted, venv: Path, folder: Path, extra: Mapping[str, str]) -> Watched | None:
    """Under `traceml run`, with the edits that its README asks of a plain loop."""
    folder.mkdir(parents=True)
    shutil.copytree(JOBS, folder / "jobs")
    script = folder / "jobs" / f"{job.script or job.name}.py"
    if not job.needs:
        edited = edited_for_traceml(script.read_text())
        if edited is None:
            return None
        script.write_text(edited)
    command = [str(venv / "bin" / "traceml"), "run", str(script), "--nproc-per-node", str(job.torchrun or 1)]
    command += ["--logs-dir", str(folder / "logs"), "--run-name", "run", "--args", *job.arguments]
    done, after_s, steps = _clocked(command, job, folder, extra)
    summary = folder / "logs" / "run" / "final_summary.json"
    found = as_json(summary.read_text()).get("primary_diagnosis") or {} if summary.exists() else {}
    size = sum(each.stat().st_size for each in (folder / "logs").rglob("*") if each.is_file())
    said = f"{found['status']}: {found.get('summary', '')}" if found else f"no summary, exit {done.code}"
    return Watched(
        said=said, right=False, accused="STRAGGLER" in said, wall_s=done.wall_s, after_s=after_s,
        bytes_a_step=size / steps if steps else None,
    )  # fmt: skip


def edited_for_traceml(source: str) -> str | None:
    """The job with ``traceml.init()``, and ``trace_step(model)`` around the loop's body; None: no loop ticks."""
    tree = ast.parse(source)
    loops = [
        node for node in ast.walk(tree) if isinstance(node, ast.For) and any(map(_ticks, node.body))
    ]  # fmt: skip
    if not loops:
        return None
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    model = next((name for name in ("model", "module", "head") if name in named), "model")
    for loop in loops:
        step = ast.parse(f"with traceml.trace_step({model}):\n    pass").body[0]
        assert isinstance(step, ast.With)
        step.body = [each for each in loop.body if not _ticks(each)]
        loop.body = [step, *filter(_ticks, loop.body)]
    at = 1 if ast.get_docstring(tree) else 0
    tree.body[at:at] = ast.parse("import traceml_ai as traceml\ntraceml.init(mode='auto')").body
    return ast.unparse(ast.fix_missing_locations(tree))


def _ticks(statement: ast.stmt) -> bool:
    return ast.unparse(statement) == "tick()"


if __name__ == "__main__":
    main(sys.argv[1:])

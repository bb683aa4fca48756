"""Jobs of six shapes, watched from another terminal while one rank becomes slower and another one leaks.

``python -m benchmarks.watched_shapes [--only NAMES] [--clean N] [--steps N]``: each job runs under ``stepscope run`` and
``stepscope watch RUN --json`` looks at it every ten seconds. Rank 1 takes a quarter longer after a third of the steps, and
rank 0 keeps 1 MiB a step from then on; ``--clean N``: instead N runs in which nothing is planted.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks._report import heading
from benchmarks.own_jobs.grading import as_json
from benchmarks.own_jobs.planted import JOBS, PLANTED, Planted, frameworks_folder
from benchmarks.own_jobs.running import SETTINGS

SHAPES = ("clean_ddp", "clean_fsdp2", "clean_tp", "pipeline", "clean_hf_trainer", "clean_lightning")
EVERY_S, DEADLINE_S = 10.0, 400.0


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.watched_shapes", description=__doc__)
    parser.add_argument("--only", default=",".join(SHAPES), help="names of jobs, with commas")
    parser.add_argument("--clean", type=int, default=0, help="runs of each in which nothing is planted")
    parser.add_argument("--steps", type=int, default=2400)
    options = parser.parse_args(list(arguments) or sys.argv[1:])
    known = {each.name: each for each in PLANTED}
    heading("watched from another terminal: who becomes slower, and what leaks")
    for job in (known[name] for name in options.only.split(",")):
        if reason := job.missing(frameworks_folder()):
            print(f"{job.name}: skipped: {reason}", flush=True)
            continue
        for number in range(options.clean or 1):
            with tempfile.TemporaryDirectory() as folder:
                begin = 0 if options.clean else options.steps // 3
                looks = list(_watched(job, options.steps, begin, Path(folder)))
                print(f"{job.name} {number + 1}: {_said(looks, begin)}", flush=True)


def _watched(job: Planted, steps: int, begin: int, folder: Path) -> Iterator[dict[str, Any]]:
    """The verdicts of all looks; the last is that of the ended job."""
    frameworks, out = frameworks_folder(), folder / "run"
    more = {"PYTHONPATH": str(frameworks)} if job.needs and frameworks else {}
    command = job.command()
    at = command.index(str(JOBS / f"{job.script or job.name}.py"))
    planted = [*command[:at], str(JOBS / "planted_later.py"), command[at], str(steps), str(begin)]
    stepscope = [sys.executable, "-m", "stepscope.cli"]
    environment = {**os.environ, **SETTINGS, **more}
    with (folder / "said").open("w") as said:
        child = subprocess.Popen(
            [*stepscope, "run", "-o", str(out), "--", *planted], stdout=said, stderr=said, env=environment
        )
        ends = time.monotonic() + DEADLINE_S
        while child.poll() is None and time.monotonic() < ends:
            time.sleep(EVERY_S)
            if found := _look(stepscope, out, environment):
                yield found
        if child.poll() is None:
            child.terminate()
        code = child.wait()
    if code:
        print((folder / "said").read_text()[-2000:])
    if found := _look(stepscope, out, environment):
        yield found


def _look(stepscope: Sequence[str], out: Path, environment: dict[str, str]) -> dict[str, Any] | None:
    done = subprocess.run(
        [*stepscope, "watch", str(out), "--json"], capture_output=True, text=True, env=environment, check=False
    )
    verdict = as_json(done.stdout).get("verdict") if done.returncode == 0 else None
    return verdict if isinstance(verdict, dict) else None


def _said(looks: Sequence[dict[str, Any]], begin: int) -> str:
    slow = next((each for each in looks if 1 in _slower(each)), None)
    leak = next((each for each in looks if 0 in _leaks(each)), None)
    wrong = [_accusation(each) for each in looks if _slower(each) - {1} or _leaks(each) - {0}]
    if not begin:
        wrong = [_accusation(each) for each in looks if _slower(each) or _leaks(each)]
        return f"{len(looks)} looks, {len(wrong)} accuse a rank {wrong[-1:]}"
    last = looks[-1] if looks else {}
    lines = [(last.get(key) or {}).get("line") for key in ("change", "memory")]
    return (
        f"slow rank {_when(slow, begin)}; leak {_when(leak, begin)}; others accused {wrong}; at the end: "
        f"{last.get('headline')} | {lines[0]} | {lines[1]}"
    )


def _accusation(verdict: dict[str, Any]) -> str:
    lines = [(verdict.get(key) or {}).get("line") for key in ("change", "memory")]
    costs = [(cost["kind"], cost["ranks"], round(cost["share"]["value"], 3)) for cost in verdict["costs"][:3]]
    return f"after {verdict['steps_made']} steps: {costs} | {lines[0]} | {lines[1]}"


def _slower(verdict: dict[str, Any]) -> set[int]:
    change = verdict.get("change") or {}
    late = {rank for cost in verdict["costs"] if cost["kind"] in ("straggler", "uneven-work") for rank in cost["ranks"]}
    return late | set(change.get("ranks", ()) if change and change["ratio"]["value"] > 1 else ())


def _leaks(verdict: dict[str, Any]) -> set[int]:
    return {rank for each in (verdict.get("memory") or {}).get("growth", ()) for rank in each["ranks"]}


def _when(verdict: dict[str, Any] | None, begin: int) -> str:
    return "not named" if verdict is None else f"named by step {(verdict['steps_made'] or 0) - begin:+,} after it"


if __name__ == "__main__":
    main()

"""A rank that computes a quarter longer, and none, on 2, 4 and 8 real ranks: does the verdict name it, and nobody else?

``python -m benchmarks.straggler_ranks [--ranks 2,4,8] [--runs N] [--steps N]``: so many planted runs of each, and as many
clean ones. More ranks than cores wait for a processor, which the verdict may say first: then its next cost is graded.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._report import heading
from benchmarks.own_jobs.grading import as_json
from benchmarks.own_jobs.planted import BASE, LATE, Planted
from benchmarks.own_jobs.running import run_command

LATE_RANK = 1


def main(arguments: Sequence[str] = ()) -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.straggler_ranks", description=__doc__)
    parser.add_argument("--ranks", default="2,4,8")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args(list(arguments) or sys.argv[1:])
    heading("a rank that computes a quarter longer, real ranks")
    for ranks in map(int, options.ranks.split(",")):
        found = [_named(ranks, options.steps, clean=clean) for _ in range(options.runs) for clean in (False, True)]
        right = sum(named == {LATE_RANK} for named in found[::2])
        wrong = sum(bool(named) for named in found[1::2])
        print(
            f"{ranks} ranks: rank {LATE_RANK} alone named in {right} of {options.runs}, in clean runs a rank in {wrong} of"
            f" {options.runs}; load {os.getloadavg()[0]:.1f}"
            + "".join(f"; {sorted(named)} named" for named in found[::2] if named != {LATE_RANK}),
            flush=True,
        )


def _named(ranks: int, steps: int, *, clean: bool) -> set[int]:
    """Ranks that the verdict says are late."""
    arguments = ("--clean", "--steps", str(steps)) if clean else ("--plant", "backward", "--steps", str(steps))
    job = Planted(
        name="watched",
        script="watched",
        shape="DDP",
        torchrun=ranks,
        arguments=arguments,
        verdicts=BASE if clean else LATE,
    )
    stepscope = [sys.executable, "-m", "stepscope.cli"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run_command([*stepscope, "run", "--deep", "off", "-o", str(out), "--", *job.command()],
                    timeout_s=300, folder=Path(folder) / "job", extra={})  # fmt: skip
        asked = run_command(
            [*stepscope, "diagnose", str(out), "--json"], timeout_s=60, folder=Path(folder) / "ask", extra={}
        )
    verdict: Mapping[str, Any] = as_json(asked.out).get("verdict") or {}
    return {rank for cost in verdict.get("costs", ()) if cost["kind"] in LATE for rank in cost["ranks"]}


if __name__ == "__main__":
    main()

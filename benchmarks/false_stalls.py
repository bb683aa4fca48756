"""How often a stall is told of a job in which nothing is wrong: it evaluates, saves and compiles for seconds.

``STALLS_RUNS``: how many jobs (200); ``STALLS_LIMIT_S``: seconds without a step from which on ranks are asked (1), where
`run` and `profile` take 15: pauses are as much shorter.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks._report import heading
from stepscope.launch.hang_watch import HangWatch
from stepscope.records.profile import Hang
from stepscope.store.layout import ProfileLayout

JOB = Path(__file__).with_name("_clean_job.py")
TORCHRUN = Path(sys.executable).with_name("torchrun")
RUNS = int(os.environ.get("STALLS_RUNS", "200"))
LIMIT_S = float(os.environ.get("STALLS_LIMIT_S", "1"))
AT_ONCE = 3


def watched(seed: int) -> tuple[int, bool, list[Hang]]:
    """Exit code of one job, whether its ranks were asked where they are, and the stalls that were told."""
    with tempfile.TemporaryDirectory(prefix="false-stalls-") as folder:
        out = Path(folder) / "run"
        job = [str(TORCHRUN), "--standalone", "--nproc-per-node", "2", str(JOB), str(seed)]
        line = [sys.executable, "-m", "stepscope.cli", "run", "-o", str(out), "--", *job]
        process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        watch, stalls = HangWatch(ProfileLayout(out), None, stall_s=LIMIT_S), []
        while process.poll() is None:
            time.sleep(0.05)
            if (seen := watch.look()) is not None:
                stalls.append(seen[1])
        return process.returncode, ProfileLayout(out).stack_request.exists(), stalls


def main() -> None:
    """Print each stall that is told, and how many jobs have one."""
    heading(f"stalls told of {RUNS} clean jobs, asked after {LIMIT_S:g} s")
    asked = stalled = failed = 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for seed, (code, was_asked, stalls) in enumerate(pool.map(watched, range(RUNS))):
            asked, stalled, failed = asked + was_asked, stalled + bool(stalls), failed + bool(code)
            for stall in stalls:
                print(f"job {seed}: after {stall.silent_s:.1f} s rank {stall.ranks}: {dict(stall.parts)} {stall.place}")
            if code:
                print(f"job {seed}: exit code {code}")
    print(f"false stalls: {stalled} of {RUNS} jobs; ranks were asked in {asked}; {failed} failed")


if __name__ == "__main__":
    main()

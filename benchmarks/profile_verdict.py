"""From the end of a job under `stepscope profile` to that of the command, verdict printed: 8 ranks of 8 profiled steps."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._report import heading

RUNS, RANKS, STEPS = 3, 8, 8
BAR_S, STRETCH_S = 3.0, 1.5
OPERATORS = (100, 1_000)
"""Of a forward pass: each is two or three events of the trace."""
JOB = """
import sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(40):
    x = torch.zeros(8, 8)
    for _ in range(int(sys.argv[1])):
        x = x + 1
    model(x.clone()).sum().backward()
    optimizer.step(); optimizer.zero_grad()
del model
dist.destroy_process_group()
"""
JOB_ENDS = (
    "import subprocess, sys, time; code = subprocess.call(sys.argv[2:]); "
    "open(sys.argv[1], 'w').write(str(time.time())); sys.exit(code)"
)
"""The command around the job: it leaves the time at which the job has ended."""


def main() -> None:
    """Print the seconds of each run, for traces of two sizes."""
    heading("profile: from the job's end to the command's, verdict included")
    for operators in OPERATORS:
        found = []
        for _ in range(RUNS):
            with tempfile.TemporaryDirectory() as folder:
                found.append(_once(Path(folder), operators))
        took = statistics.median(seconds for seconds, _ in found)
        print(
            f"{RANKS} ranks x {STEPS} steps x {operators:,} operators, {found[0][1] / 1e6:.1f} MB of traces: "
            f"{', '.join(f'{seconds:.2f}' for seconds, _ in found)} s, median {took:.2f} s; "
            f"bar {BAR_S:.0f} s {'reached' if took < BAR_S else 'missed'}, "
            f"stretch {STRETCH_S} s {'reached' if took < STRETCH_S else 'missed'}"
        )


def _once(folder: Path, operators: int) -> tuple[float, int]:
    """Seconds, and bytes of traces."""
    script, ended, out = folder / "job.py", folder / "ended", folder / "out"
    script.write_text(JOB)
    bin_ = Path(sys.executable).parent
    job = [str(bin_ / "torchrun"), "--standalone", "--nproc-per-node", str(RANKS), str(script), str(operators)]
    command = [str(bin_ / "stepscope"), "profile", "--steps", str(STEPS), "-o", str(out), "--"]
    subprocess.run(
        [*command, sys.executable, "-c", JOB_ENDS, str(ended), *job], check=True, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    seconds = time.time() - float(ended.read_text())
    return seconds, sum(path.stat().st_size for path in (out / "window-1").iterdir())


if __name__ == "__main__":
    main()

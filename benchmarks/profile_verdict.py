"""From the end of a profiled window to the printed verdict of `stepscope profile`: 2 ranks, about 100,000 events each."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

from benchmarks._report import heading
from stepscope.records.profile import WindowOfRank
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record

RUNS = 3
JOB = """
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(30):
    x = torch.zeros(8, 8)
    for _ in range(6_600):
        x = x + 1
    model(x.clone()).sum().backward()
    optimizer.step(); optimizer.zero_grad()
dist.destroy_process_group()
"""


def main() -> None:
    """Print the seconds of each run: writing the traces included, and alone what follows."""
    heading("profile: from the window's end to the verdict")
    whole, after = [], []
    for _ in range(RUNS):
        with tempfile.TemporaryDirectory() as folder:
            events, total, verdict = _once(Path(folder))
        whole.append(total)
        after.append(verdict)
        print(f"{events:,} events a rank: {total:.2f} s, of which {verdict:.2f} s after the last trace was written")
    print(f"median {statistics.median(whole):.2f} s (after the traces: {statistics.median(after):.2f} s); bar 5 s")


def _once(folder: Path) -> tuple[int, float, float]:
    script = folder / "job.py"
    script.write_text(JOB)
    out = folder / "out"
    bin_ = Path(sys.executable).parent
    line = [str(bin_ / "stepscope"), "profile", "--wait", "3", "-o", str(out), "--"]
    job = subprocess.Popen(
        [*line, str(bin_ / "torchrun"), "--nproc-per-node", "2", str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert job.stdout is not None
    printed, events = 0.0, 0
    for text in job.stdout:
        if " ranks · " in text and not events:
            events = int(text.split(" · ")[1].split()[0].replace(",", "")) // 2
        if text.startswith("step time without"):
            printed = time.time()
    job.wait()
    reports = [read_record(path, WindowOfRank) for path in ProfileLayout(out).window_ranks(1)]
    ended = max(datetime.fromisoformat(r.ended or "").timestamp() for r in reports)
    last = max(path.stat().st_mtime for path in ProfileLayout(out).traces(1).iterdir())
    return events, printed - ended, printed - last

"""Goodput of a planted job beside the job's own clock: 2 gloo ranks, two restarts, one evaluation, one checkpoint."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks._report import heading
from stepscope.core.errors import Unavailable
from stepscope.results.goodput import PARTS, goodput
from stepscope.results.profiled_job import read_profiled_job

BAR = 0.02
JOB = """
import json, os, sys, time
began = time.time()
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
folder = sys.argv[1]
torch.set_num_threads(1)
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
# A store for each attempt: with torchrun's own one gloo stands still after a restart (torch 2.13, also without a hook).
store = "file://%s/store-%d" % (folder, attempt)
dist.init_process_group("gloo", init_method=store, rank=int(os.environ["RANK"]), world_size=2)
rank = dist.get_rank()
model = DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
place = os.path.join(folder, "checkpoint.pt")
first = torch.load(place, weights_only=False)["step"] if os.path.exists(place) else 0
told = open(os.path.join(folder, "truth-%d-%d.jsonl" % (rank, attempt)), "w")
def tell(kind, start, number=0):
    told.write(json.dumps([kind, start, time.time(), number]) + "\\n"); told.flush()
def usual():
    model(torch.ones(16, 64)).sum().backward(); time.sleep(0.05); optimizer.step(); optimizer.zero_grad()
tell("start", began)
class Slow(dict):
    def __reduce__(self):
        time.sleep(1.5)
        return dict, ({"step": self["step"]},)
for step in range(first, 160):
    start = time.time()
    usual()
    tell("step", start, step)
    if step == 59 and attempt == 0:
        start = time.time()
        model.eval()
        with torch.no_grad():
            for _ in range(10):
                time.sleep(0.15); model.module(torch.ones(16, 64))
        model.train()
        tell("evaluation", start)
    if step == 79 and attempt == 0:
        dist.barrier()
        start = time.time()
        if rank == 0:
            torch.save({"step": 80, "model": model.module.state_dict(), "slow": Slow(step=80)}, place)
        dist.barrier()
        tell("checkpoint", start)
    if (step == 99 and attempt == 0) or (step == 119 and attempt == 1):
        raise RuntimeError("planted")
tell("end", time.time())
dist.destroy_process_group()
"""


def main() -> None:
    """Print each part beside the truth."""
    heading("goodput: two restarts, one evaluation, one checkpoint, against the job's own clock")
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        script = Path(folder) / "job.py"
        script.write_text(JOB)
        bin_ = Path(sys.executable).parent
        command = [str(bin_ / "stepscope"), "run", "-o", str(out), "--", str(bin_ / "torchrun"), "--standalone",
                   "--max-restarts", "3", "--nproc-per-node", "2", str(script), folder]  # fmt: skip
        subprocess.run(
            command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, timeout=120
        )
        job = read_profiled_job(out)
        assert job is not None
        found = goodput(job)
        assert not isinstance(found, Unavailable)
        truth = _truth(Path(folder))
    wall = sum(truth.values())
    print(f"wall time {found.wall_ns / 1e9:.2f} s, by the job's clock {wall:.2f} s; {found.repeated_steps} steps lost")
    worst = 0.0
    for part in PARTS:
        ours, theirs = found.share(part), truth[part] / wall
        if max(ours, theirs) > 0.0005:
            worst = max(worst, abs(ours - theirs))
            print(f"{part:20} {ours:7.2%}   truth {theirs:7.2%}   {100 * (ours - theirs):+.2f} points")
    print(f"largest difference {100 * worst:.2f} points; bar {100 * BAR:.0f}: {'reached' if worst < BAR else 'missed'}")


def _truth(folder: Path) -> Counter[str]:
    """Seconds of each part, as rank 0 timed them; a step after which the job was restarted without saving it is lost."""
    found: Counter[str] = Counter()
    ended, kept = 0.0, 0
    files = sorted(folder.glob("truth-0-*.jsonl"))
    for attempt, path in enumerate(files):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        steps = [line for line in lines if line[0] == "step"]
        usual = sorted(end - start for _, start, end, _ in steps)[len(steps) // 2]
        found["restart" if attempt else "start_up"] += steps[0][1] - (ended if attempt else lines[0][1])
        found["warm_up"] += max(steps[0][2] - steps[0][1] - usual, 0.0)
        kept = max([kept, *(80 for line in lines if line[0] == "checkpoint")])
        for at, (_, start, end, number) in enumerate(steps):
            lost = attempt < len(files) - 1 and number >= kept
            found["repeated" if lost else "productive"] += usual if at == 0 else end - start
        for kind, start, end, _ in lines:
            if kind in ("evaluation", "checkpoint"):
                found[kind] += end - start
        ended = lines[-1][2]
    return found


if __name__ == "__main__":
    main()

"""A matrix of 24 short cells on 2 gloo ranks: our wall time against one torchrun per cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._report import heading

WARMUP, STEPS = 5, 20
MATRIX = f"""
version: 1
base: {{workload: mlp, dataset: synthetic, dataset_options: {{samples: 4096}}, lr: 0.01, world_size: 2, steps: {STEPS}}}
axes:
  strategy: [naive, interleaved, ddp]
  model.size: [tiny, small]
  global_batch: [64, 128]
  accumulation: [1, 2]
measure: {{warmup: {WARMUP}}}
"""
PEER = '''
"""The plain script that a benchmark runner starts once per cell."""
import json, sys, time
import torch, torch.distributed as dist
from torch import nn
cell = json.loads(sys.argv[1])
dist.init_process_group("gloo")
torch.manual_seed(1)
hidden = {"tiny": [64], "small": [512, 256]}[cell["size"]]
sizes = [784, *hidden, 10]
layers = []
for a, b in zip(sizes, sizes[1:]):
    layers += [nn.Linear(a, b), nn.ReLU()]
model = nn.Sequential(*layers[:-1])
net = nn.parallel.DistributedDataParallel(model) if cell["strategy"] == "ddp" else model
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x, y = torch.randn(4096, 784), torch.randint(0, 10, (4096,))
micro = cell["batch"] // 2 // cell["accumulation"]
loss_of = nn.CrossEntropyLoss()
times = []
for step in range(cell["warmup"] + cell["steps"]):
    before = time.perf_counter()
    for _ in range(cell["accumulation"]):
        index = torch.randint(0, 4096, (micro,))
        loss_of(net(x[index]), y[index]).backward()
    if cell["strategy"] == "naive":
        for p in model.parameters():
            dist.all_reduce(p.grad)
    elif cell["strategy"] == "interleaved":
        works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
        for work in works:
            work.wait()
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.perf_counter() - before)
if dist.get_rank() == 0:
    print("RESULT", json.dumps(sorted(times)[len(times) // 2]))
dist.barrier()  # a rank that leaves early can fail the other's goodbye
dist.destroy_process_group()
'''


def main() -> None:
    heading("a matrix of 24 cells of 25 steps on 2 gloo ranks: stepscope bench / one torchrun per cell")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "matrix.yaml").write_text(MATRIX)
        (folder / "peer.py").write_text(PEER)
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": name}
        ratios = []
        for number in range(2):
            ours = _ours(folder, number, environ)
            theirs = _torchrun_per_cell(folder, environ)
            ratios.append(ours / theirs)
            print(
                f"round {number + 1}: ours {ours:.1f} s, one torchrun per cell {theirs:.1f} s, ratio {ratios[-1]:.3f}"
            )
    print(f"ours / peer: {min(ratios):.3f} to {max(ratios):.3f}; bar: at most 0.333")


def _ours(folder: Path, number: int, environ: dict[str, str]) -> float:
    command = [sys.executable, "-m", "stepscope.cli", "bench", "matrix.yaml", "-o", f"run{number}"]
    before = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environ)
    return time.perf_counter() - before


def _torchrun_per_cell(folder: Path, environ: dict[str, str]) -> float:
    before = time.perf_counter()
    for strategy in ("naive", "interleaved", "ddp"):
        for size in ("tiny", "small"):
            for batch in (64, 128):
                for accumulation in (1, 2):
                    cell = {"strategy": strategy, "size": size, "batch": batch, "accumulation": accumulation,
                            "warmup": WARMUP, "steps": STEPS}  # fmt: skip
                    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
                               "peer.py", json.dumps(cell)]  # fmt: skip
                    subprocess.run(command, check=True, capture_output=True, cwd=folder, env=environ)
    return time.perf_counter() - before


if __name__ == "__main__":
    main()

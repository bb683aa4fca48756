"""What the hook of `stepscope profile` and `run` adds to a step: all of its looks, the work between them left out."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._report import heading
from stepscope.launch.hooked_job import HOOK

ROUNDS, STEPS = 15, 5_000
STEP_US = 10_000.0
"""The step that the bar is a share of."""
BAR, STRETCH = 0.005, 0.002

CODE = """
import json, sys, time
import torch
from torch.utils.data import dataloader
torch.set_num_threads(1)
class Nothing(torch.optim.Optimizer):
    def __init__(self, parameters): super().__init__(parameters, {})
    def step(self): pass
class Batches(dataloader._BaseDataLoaderIter):
    def __init__(self): self._profile_name, self._num_yielded = "next", 0
    _sampler_iter = _dataset_kind = _IterableDataset_len_called = 0
    def _next_data(self): return None
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
    def forward(self, batch): return self.weight
model = Model()
optimizer, batches, steps = Nothing(model.parameters()), Batches(), int(sys.argv[1])
def train():
    for _ in range(steps):
        model(next(batches)).backward()
        optimizer.step()
train()
times = []
for _ in range(int(sys.argv[2])):
    begun = time.thread_time_ns(), time.perf_counter_ns()
    train()
    times.append([(time.thread_time_ns() - begun[0]) / steps, (time.perf_counter_ns() - begun[1]) / steps])
print(json.dumps(times))
"""


def main() -> None:
    """Print what a step takes with the hook, asleep and before a window, less what it takes without."""
    heading("hook of profile and run: cost of a step outside the window, diary included")
    later = {"steps": 3, "wait": 10**9, "warmup": 1, "fixed_step": 10**9, "collect": ["shapes"], "tool": "torch"}
    with tempfile.TemporaryDirectory() as folder:
        plain = _times({})
        asleep = _times(_environment(Path(folder) / "asleep", first=None))
        waiting = _times(_environment(Path(folder) / "waiting", first=later))
        again = _times({})
    base = [statistics.median(each) for each in plain]
    print(f"a step that does nothing, without the hook: {base[0] / 1e3:.2f} us of CPU time, {base[1] / 1e3:.2f} us")
    cases = (
        ("without the hook, again", again),
        ("asleep (`stepscope run`)", asleep),
        ("before its window (`stepscope profile`)", waiting),
    )
    for name, times in cases:
        added = [(statistics.median(each) - before) / 1e3 for each, before in zip(times, base, strict=True)]
        share = added[0] / STEP_US
        print(f"{name}: {added[0]:+.2f} us of CPU time a step, {added[1]:+.2f} us: {share:.3%} of a step of 10 ms")
        if "without" not in name:
            print(f"  bar {BAR:.1%}: {'reached' if share < BAR else 'missed'}; stretch {STRETCH:.1%}: "
                  f"{'reached' if share < STRETCH else 'missed'}")  # fmt: skip


def _environment(folder: Path, *, first: dict[str, object] | None) -> dict[str, str]:
    folder.mkdir()
    (folder / "profile.json").write_text("{}")
    options = {"output": str(folder), "tool_version": "0", "step_optimizer": 1, "first": first}
    return {"STEPSCOPE_HOOK": json.dumps(options), "PYTHONPATH": str(HOOK)}


def _times(environment: dict[str, str]) -> tuple[list[float], list[float]]:
    """(CPU time of the thread, wall clock) of a step in ns, one each for every round."""
    line = [sys.executable, "-c", CODE, str(STEPS), str(ROUNDS)]
    done = subprocess.run(line, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True, text=True)
    rounds = json.loads(done.stdout)
    return [each[0] for each in rounds], [each[1] for each in rounds]

"""What `stepscope run` and `profile` add to a job: to each step, to its memory over a million steps, to its wall time.

The step is a no-op between all of the hook's looks, so that only they are timed.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks._report import heading
from stepscope.launch.hooked_job import HOOK

ROUNDS, STEPS = 15, 5_000
BAR_US, BAR_BYTES, BAR_S, BAR_AFTER_S = 30.0, 2e6, 0.5, 0.5
"""Added to a step, to the memory of a rank, to the wall time of a job, and to the time from its last line to the prompt."""
MANY = (100_000, 500_000, 1_000_000)
"""Steps after which memory is looked at."""
PAIRS = 9
"""Of a job with and without `stepscope run`."""

CODE = """
import json, sys, time
import torch
from torch.utils.data import dataloader
waits = [0]
def counted(owner, name):
    original = getattr(owner, name)
    def call(*args, **kwargs):
        waits[0] += 1
        return original(*args, **kwargs)
    setattr(owner, name, call)
for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"):
    counted(torch.Tensor, name)
for name in ("synchronize", "current_stream"):
    counted(torch.cuda, name)
for owner in (torch.cuda.Event, torch.cuda.Stream):
    counted(owner, "synchronize")
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
if sys.argv[2] == "memory":
    many, found, made = json.loads(sys.argv[3]), [], steps
    for wanted in many:
        steps, made = wanted - made, wanted
        train()
        time.sleep(2.5)  # what is written once a second is written
        found.append(int(open("/proc/self/statm").read().split()[1]) * 4096)
    print(json.dumps(found))
    raise SystemExit
times = []
for _ in range(int(sys.argv[2])):
    begun = time.thread_time_ns(), time.perf_counter_ns()
    train()
    times.append([(time.thread_time_ns() - begun[0]) / steps, (time.perf_counter_ns() - begun[1]) / steps])
print(json.dumps([times, waits[0]]))
"""


JOB = """
import time
import torch
torch.set_num_threads(1)
model, x = torch.nn.Linear(512, 512), torch.randn(256, 512)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(400):
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
print("wall", time.time(), flush=True)
"""
"""A short job of one process: all that `run` adds to it is start and end."""


def main() -> None:
    """Print each cost beside its bar."""
    heading("what stepscope run and profile add to a job")
    later = {"steps": 3, "wait": 10**9, "warmup": 1, "fixed_step": 10**9, "collect": ["shapes"], "tool": "torch"}
    with tempfile.TemporaryDirectory() as folder:
        asleep, waiting, long = (Path(folder) / name for name in ("asleep", "waiting", "long"))
        plain, plain_waits = _times({})
        cases = [
            ("without the hook, again", None),
            ("asleep (`stepscope run`)", _environment(asleep, first=None)),
            ("before its window (`stepscope profile`)", _environment(waiting, first=later)),
        ]
        base = [statistics.median(each) for each in plain]
        print(f"a step that does nothing, without the hook: {base[0] / 1e3:.2f} us of CPU time, {base[1] / 1e3:.2f} us")
        for name, environment in cases:
            times, waits = _times(environment or {})
            added = [(statistics.median(each) - before) / 1e3 for each, before in zip(times, base, strict=True)]
            said = f"{name}: {added[0]:+.2f} us of CPU time a step, {added[1]:+.2f} us"
            bar = f"; bar {BAR_US:g} us: {_reached(added[0], BAR_US)}; {waits - plain_waits} waits for a device, bar 0"
            print(said + (bar if environment else ""), flush=True)
        _memory(_environment(long, first=None))
        _wall(Path(folder))


def _reached(value: float, bar: float) -> str:
    return "reached" if value <= bar else "missed"


def _memory(environment: dict[str, str]) -> None:
    """Resident bytes of the process after so many steps, less those of the same process without the hook."""
    line = [sys.executable, "-c", CODE, str(1000), "memory", json.dumps(MANY)]
    found = [
        json.loads(subprocess.run(line, env={**os.environ, **more}, stdout=subprocess.PIPE, check=True).stdout)
        for more in ({}, environment)
    ]
    added = [more - without for without, more in zip(*found, strict=True)]
    said = ", ".join(f"{steps:,}: {each / 1e6:+.2f} MB" for steps, each in zip(MANY, added, strict=True))
    print(f"memory added after steps {said}; bar {BAR_BYTES / 1e6:g} MB: {_reached(max(added), BAR_BYTES)}", flush=True)


def _wall(folder: Path) -> None:
    """A short job with and without `stepscope run`, one after the other."""
    added, after = [], []
    for number in range(PAIRS):
        plain, plain_ended = _job([])
        out = folder / f"run-{number}"
        watched, ended = _job([sys.executable, "-m", "stepscope.cli", "run", "-o", str(out), "--"])
        added.append(watched - plain)
        after.append(ended - plain_ended)
    for name, values, bar in (("wall time added to a job of one process", added, BAR_S),
                              ("of that after its last line, verdict printed", after, BAR_AFTER_S)):  # fmt: skip
        middle = statistics.median(values)
        print(f"{name}: {middle:.2f} s ({min(values):.2f} to {max(values):.2f}, {PAIRS} pairs); bar {bar:g} s: "
              f"{_reached(middle, bar)}", flush=True)  # fmt: skip


def _job(before: list[str]) -> tuple[float, float]:
    """(seconds from start to end of the command, from the job's last line to it)"""
    begun = time.time()
    done = subprocess.run([*before, sys.executable, "-c", JOB], capture_output=True, check=True, text=True)
    ended = time.time()
    last = next(line for line in done.stdout.splitlines() if line.startswith("wall "))
    return ended - begun, ended - float(last.split()[1])


def _environment(folder: Path, *, first: dict[str, object] | None) -> dict[str, str]:
    folder.mkdir()
    (folder / "profile.json").write_text("{}")
    options = {"output": str(folder), "tool_version": "0", "step_optimizer": 1, "first": first}
    return {"STEPSCOPE_HOOK": json.dumps(options), "PYTHONPATH": str(HOOK)}


def _times(environment: dict[str, str]) -> tuple[tuple[list[float], list[float]], int]:
    """(CPU time of the thread, wall clock) of a step in ns, one each for every round; calls that would wait for a device."""
    line = [sys.executable, "-c", CODE, str(STEPS), str(ROUNDS)]
    done = subprocess.run(line, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True, text=True)
    rounds, waits = json.loads(done.stdout)
    return ([each[0] for each in rounds], [each[1] for each in rounds]), waits


if __name__ == "__main__":
    main()

"""What the hook of `stepscope profile` and `run` adds to a step: torch's optimizer hook alone, the work left out."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks._report import heading
from stepscope.launch.hooked_job import HOOK

ROUNDS, STEPS = 15, 20_000

CODE = """
import json, sys, time
import torch
class Nothing(torch.optim.Optimizer):
    def __init__(self): super().__init__([torch.nn.Parameter(torch.zeros(1))], {})
    def step(self): pass
optimizer, steps = Nothing(), int(sys.argv[1])
for _ in range(200): optimizer.step()
times = []
for _ in range(int(sys.argv[2])):
    begun = time.perf_counter_ns()
    for _ in range(steps): optimizer.step()
    times.append((time.perf_counter_ns() - begun) / steps)
print(json.dumps(times))
"""


def main() -> None:
    """Print the median cost of a step with the hook, asleep and before a window, less that of a step without it."""
    heading("hook of profile and run: cost of a step outside the window")
    with tempfile.TemporaryDirectory() as folder:
        plain = _times({})
        asleep = _times(_environment(Path(folder) / "asleep", first=None))
        later = {"steps": 3, "wait": 10**9, "warmup": 1, "fixed_step": 10**9, "collect": ["shapes"], "tool": "torch"}
        waiting = _times(_environment(Path(folder) / "waiting", first=later))
    base = statistics.median(plain)
    print(f"step() of an optimizer that does nothing, without the hook: {base / 1e3:.2f} us")
    for name, times in (("asleep (`stepscope run`)", asleep), ("before its window (`stepscope profile`)", waiting)):
        added = sorted((each - base) / 1e3 for each in times)
        middle = statistics.median(added)
        least = (min(times) - min(plain)) / 1e3
        print(f"{name}: {middle:+.2f} us a step ({added[0]:.2f} to {added[-1]:.2f} least {least:+.2f})")


def _environment(folder: Path, *, first: dict[str, object] | None) -> dict[str, str]:
    folder.mkdir()
    (folder / "profile.json").write_text("{}")
    options = {"output": str(folder), "tool_version": "0", "step_optimizer": 1, "first": first}
    return {"STEPSCOPE_HOOK": json.dumps(options), "PYTHONPATH": str(HOOK)}


def _times(environment: dict[str, str]) -> list[float]:
    import os

    line = [sys.executable, "-c", CODE, str(STEPS), str(ROUNDS)]
    done = subprocess.run(line, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True, text=True)
    return [float(each) for each in json.loads(done.stdout)]

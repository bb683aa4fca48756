"""``python phases_program.py DEVICE TRACE``: profiled steps, timed by stepscope's own step timer; phases as JSON, ns.

Layers so wide that the device is never idle: what events measure from mark to mark is what kernels take.
"""

from __future__ import annotations

import json
import sys

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from stepscope.rank.timer import BACKWARD, FORWARD, OPTIMIZER, Regions, step_timer

STEPS = 4


def main() -> None:
    device, trace = torch.device(sys.argv[1]), sys.argv[2]
    torch.manual_seed(0)
    width, batch = (8192, 4096) if device.type == "cuda" else (1024, 256)
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width) for _ in range(6))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(batch, width, device=device)
    timer, regions = step_timer(device), Regions(enabled=True)
    pending = []
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
    with profile(
        activities=activities,
        schedule=schedule(wait=0, warmup=2, active=STEPS, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(trace),
    ) as profiler:
        for number in range(2 + STEPS):
            with regions(Regions.STEP):
                timer.start()
                with regions(Regions.FORWARD):
                    loss = model(x).square().mean()
                timer.mark(FORWARD)
                with regions(Regions.BACKWARD):
                    loss.backward()
                timer.mark(BACKWARD)
                with regions(Regions.OPTIMIZER):
                    optimizer.step()
                    optimizer.zero_grad(set_to_none=False)
                timer.mark(OPTIMIZER)
                last = timer.stop()
            if number >= 2:
                pending.append(last)
            profiler.step()
    times = [each.times() for each in pending]
    found = {
        "forward": sum(t.forward_ns for t in times),
        "backward": sum(t.backward_compute_ns for t in times),
        "optimizer": sum(t.optimizer_ns for t in times),
    }
    sys.stdout.write(json.dumps(found) + "\n")


main()

"""Beside each job: the time of its steps for the work done in them, told by rank 0 as its last line."""

from __future__ import annotations

import contextlib
import json
import math
import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

STEPS = int(os.environ.get("ADVICE_STEPS", "60"))


class Clock:
    """mean: of all steps, where what is advised is not in each of them; else their median. after: warm-up steps."""

    def __init__(self, *, mean: bool = False, after: int = 10) -> None:
        self.mean, self.after = mean, min(after, STEPS // 4)
        self.laps: list[float] = []
        self.last = time.perf_counter()
        self.loss = math.nan

    def step(self, loss: torch.Tensor, work: float = 1.0) -> None:
        """A step has ended; work: samples of it, in any unit."""
        now = time.perf_counter()
        self.laps.append((now - self.last) / work)
        self.last, self.loss = now, float(loss.detach())

    def tell(self) -> None:
        """As the job ends."""
        laps = self.laps[self.after :] or self.laps
        ms = 1e3 * (statistics.fmean(laps) if self.mean else statistics.median(laps))
        if os.environ.get("RANK", "0") == "0":
            sys.stdout.write(json.dumps({"ms": ms, "loss": self.loss, "steps": len(self.laps)}) + "\n")
            sys.stdout.flush()
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):  # the other rank may be gone already
                dist.barrier()
            os._exit(0)  # threads of gloo that are taken apart in a fork may never end

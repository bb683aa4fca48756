"""The bubble of a pipeline, measured and simulated: 2 and 4 stages that sleep for a fixed time, and 2 that compute (gloo).

Simulated: the sleeping ones with their fixed times, the computing ones with every computation as long as it took, both with
mean times of messages. `python -m benchmarks.pipeline_bubble sleep` measures the sleeping ones alone. Where root allows
it they run with SCHED_FIFO: they hardly use the processor, and other processes then do not delay their waking.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection
from contextlib import nullcontext
from typing import Any

from benchmarks._report import heading

STEPS, FORWARD_MS, INPUT_MS, WEIGHT_MS = 5, 20, 20, 20
SCHEDULES = (("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zero_bubble", 1))
MICRO_BATCHES = (2, 4, 8, 16)


def main(kinds: Collection[str] = ("sleep", "compute")) -> None:
    heading("bubble of a pipeline: measured, simulated, formula (bar: within 3 points of the simulated one)")
    worst: dict[str, float] = {}
    for ranks, kind in ((2, "sleep"), (4, "sleep"), (2, "compute")):
        if kind not in kinds:
            continue
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
                   "-m", "benchmarks.pipeline_bubble", "--rank", kind]  # fmt: skip
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
        )
        for line in done.stdout.splitlines():
            if line.startswith("{"):
                found = json.loads(line)
                off = 100 * abs(found["measured"] - found["simulated"])
                worst[f"{ranks} ranks, {kind}"] = max(off, worst.get(f"{ranks} ranks, {kind}", 0.0))
                print(
                    f"{ranks} ranks, {kind:7} {found['schedule']:11} {found['micro_batches']:2} micro-batches: measured "
                    f"{found['measured']:6.1%}, simulated {found['simulated']:6.1%} (median times: {found['even']:.1%}), "
                    f"formula {found['formula']:6.1%}; off by {off:.1f} points",
                    flush=True,
                )
    for where, off in worst.items():
        print(f"largest difference, {where}: {off:.1f} points")


def _rank(kind: str) -> None:
    import torch
    import torch.distributed as dist

    from stepscope.predict.pipeline import StageTime, simulate
    from stepscope.rank.mesh import Mesh
    from stepscope.rank.startup import use_batch_scheduling
    from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
    from stepscope.records.mesh import PipelineLayout, PipelineSpan
    from stepscope.results.pipeline import MeasuredPipeline
    from stepscope.strategies.pipeline import PipelineOptions

    try:
        policy = os.SCHED_FIFO if kind == "sleep" else os.SCHED_BATCH
        os.sched_setscheduler(0, policy, os.sched_param(int(policy == os.SCHED_FIFO)))
    except PermissionError:
        use_batch_scheduling()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    mesh = Mesh(rank=rank, world_size=ranks, device=torch.device("cpu"), backend="gloo", shape={"pp": ranks})
    for schedule, chunks in SCHEDULES:
        for micro_batches in MICRO_BATCHES:
            layout = PipelineLayout(schedule=schedule, ranks=ranks, micro_batches=micro_batches, chunks=chunks)
            if layout.problem or (schedule == "1f1b" and micro_batches < ranks):
                continue
            options = PipelineOptions(schedule=schedule, micro_batches=micro_batches, chunks=chunks)  # type: ignore[arg-type]
            blocks = layout.stages * (1 if kind == "sleep" else 2)
            session: Any = IMPLEMENTATIONS.load("pipeline")(_model(kind, blocks, chunks), mesh, options)
            width = 4 if kind == "sleep" else 768
            x, y = torch.randn(64 * micro_batches, width), torch.zeros(64 * micro_batches)
            steps: list[tuple[PipelineSpan, ...]] = []
            for step in range(STEPS + 2):
                dist.barrier()
                session.scheduled(x, y, lambda out, _: out.sum(), 1.0, nullcontext, lambda _: None)
                session.finish()
                session.zero_grad()
                if step > 1:
                    gathered: list[Any] = [None] * ranks
                    dist.all_gather_object(gathered, session.watch.spans)
                    steps.append(tuple(span for spans in gathered for span in spans))
            found = MeasuredPipeline(
                layout=layout, split=session.split, steps=tuple(steps), costs=(1.0,) * blocks, meeting=True
            )
            simulated = found.simulated_bubble
            if kind == "sleep":
                times = tuple(
                    StageTime(
                        forward_ns=FORWARD_MS * 1e6 / chunks,
                        backward_ns=(INPUT_MS + WEIGHT_MS) * 1e6 / chunks,
                        # torch computes both gradients of the first stage together, where the weights' are due
                        weight_ns=(WEIGHT_MS if stage else INPUT_MS + WEIGHT_MS) * 1e6 / chunks,
                        send_ns=seen.send_ns,
                        send_back_ns=seen.send_back_ns,
                    )
                    for stage, seen in enumerate(found.times)
                )
                simulated = simulate(layout, times, meeting=True).bubble
            if rank == 0:
                bubbles = {
                    "measured": found.bubble.value,
                    "simulated": simulated,
                    "even": simulate(layout, found.times, meeting=True).bubble,
                }
                told = {"schedule": schedule, "micro_batches": micro_batches, "formula": layout.bubble, **bubbles}
                print(json.dumps(told), flush=True)
    dist.destroy_process_group()


def _model(kind: str, blocks: int, chunks: int) -> Any:
    """A model in pieces: layers that compute, or that sleep forward, for their input's and for their weights' gradients."""
    import time

    import torch
    from torch import nn

    from stepscope.rank.workloads import Piece

    class Sleep(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, ahead: float, back: float) -> torch.Tensor:
            ctx.back = back
            time.sleep(ahead)
            return x.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:  # type: ignore[override]
            time.sleep(ctx.back)
            return grad, None, None

    class Sleeper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x if x.requires_grad else x.detach().requires_grad_()  # the first stage's, too, has a gradient
            weight = Sleep.apply(self.weight, 0.0, WEIGHT_MS / 1e3 / chunks)
            return Sleep.apply(x, FORWARD_MS / 1e3 / chunks, INPUT_MS / 1e3 / chunks) * weight

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [Sleeper() if kind == "sleep" else nn.Linear(768, 768) for _ in range(blocks)]
            self.layers = nn.ModuleList(layers)

        def pieces(self) -> list[Piece]:
            return [Piece((layer,), layer) for layer in self.layers]

    return Model()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--rank"]:
        _rank(sys.argv[2])
    else:
        main(sys.argv[1:] or ("sleep", "compute"))

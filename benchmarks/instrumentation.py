"""What timing a step costs: the same train step with every instrument replaced by a no-op, taking turns.

On a step of about 10 ms the cost is below the noise (the A/A spread). So it is measured on its own as well: the same 13
layers and 26 parameters, too small to take any time, where what the instruments add is most of the difference.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import replace
from itertools import repeat

import torch

from benchmarks._report import compare, heading, show
from stepscope.predict.specs import specs_of
from stepscope.rank.mesh import Mesh
from stepscope.rank.precision import Numerics
from stepscope.rank.sampling import Sampling, plan_epoch
from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
from stepscope.rank.timer import CpuStepTimer, GradientReadiness, NoTimer, Regions, StepTimer
from stepscope.rank.training import Training
from stepscope.rank.workloads import REGISTRY as MODULES
from stepscope.records.cell import CellSpec

ROUNDS = 12
STEPS = 40
STEP_NS = 10e6
"""The step that the bar speaks of."""

CELL = CellSpec(
    cell_id="x", workload="mlp", model={"layers": [352] * 12}, dataset="synthetic", dataset_options={},
    data_digest="", strategy="single", strategy_options={}, precision="fp32", accumulation=1, world_size=1,
    micro_batch=48, global_batch=48, batch_rule="micro_batch", optimizer="sgd", lr=0.01, momentum=0.0, lr_warmup=0,
    weight_decay=0.0, clip=None, loss="ce", steps=10, epochs=None, seed=1, num_workers=0, pin_memory=False,
    persistent_workers=False, cudnn_benchmark=False, device="cpu", backend="gloo", threads_per_rank=1,
)  # fmt: skip


def _training(cell: CellSpec, timer: StepTimer, *, hooks: bool) -> Training:
    specs = specs_of(cell)
    torch.manual_seed(1)
    task = MODULES.load("mlp")(specs.model, specs.needs, "ce")
    numerics = Numerics("fp32", torch.device("cpu"))
    module = numerics.prepare(task.module)
    readiness = GradientReadiness(module, timer) if hooks else None
    mesh = Mesh(rank=0, world_size=1, device=torch.device("cpu"), backend="gloo")
    session = IMPLEMENTATIONS.load("single")(module, mesh, specs.strategy_options)
    return Training(cell, task, session, numerics, timer, readiness)


def _rounds(cell: CellSpec, steps: int) -> tuple[list[list[float]], list[list[float]], list[list[float]]]:
    """Seconds per step: instrumented, bare, instrumented again; a list a round, the first round left out."""
    batch_size = cell.micro_batch
    window = plan_epoch(Sampling(num_samples=batch_size, world_size=1, micro_batch=batch_size), 0)[0]
    batch = (torch.randn(batch_size, 784), torch.randint(0, 10, (batch_size,)))
    plain = Regions(enabled=False)

    def seconds(training: Training) -> float:
        before = time.perf_counter()
        training.step(window, repeat(batch), plain)
        return time.perf_counter() - before

    timed = _training(cell, CpuStepTimer(), hooks=True)
    bare = _training(cell, NoTimer(), hooks=False)
    again = _training(cell, CpuStepTimer(), hooks=True)
    columns: tuple[list[list[float]], ...] = ([], [], [])
    for number in range(ROUNDS + 1):
        # Step by step in turn: whatever slows this machine down for a moment slows all three.
        triples = [(seconds(timed), seconds(bare), seconds(again)) for _ in range(steps)]
        if number:
            for column, times in zip(columns, zip(*triples, strict=True), strict=True):
                column.append(list(times))
    return columns[0], columns[1], columns[2]


def main() -> None:
    heading("instrumentation: timed step / same step with no-op instruments")
    torch.set_num_threads(1)
    a, b, again = _rounds(CELL, STEPS)
    step_ms = statistics.median(t for times in b for t in times) * 1e3
    print(f"step without instruments: {step_ms:.2f} ms, 26 parameters")
    show("timed / bare", compare(a, b, again), bar="at most 1.02 at a 10 ms step")
    small = replace(CELL, model={"layers": [8] * 12}, micro_batch=1, global_batch=1)
    a, b, _ = _rounds(small, 10 * STEPS)
    added = sorted(statistics.median(x) - statistics.median(y) for x, y in zip(a, b, strict=True))
    low, middle, high = added[0], statistics.median(added), added[-1]
    share = middle * 1e9 / STEP_NS
    print(
        f"instruments alone: {middle * 1e6:.1f} us a step (rounds {low * 1e6:.1f} to {high * 1e6:.1f}) = "
        f"{share:.2%} of a 10 ms step; bar: at most 2%"
    )


if __name__ == "__main__":
    main()

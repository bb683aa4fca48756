"""What timing a step costs: the same train step with every instrument replaced by a no-op, taking turns."""

from __future__ import annotations

import statistics
import time
from itertools import repeat

import torch

from benchmarks._report import compare, heading, show
from stepscope.instrument.regions import Regions
from stepscope.instrument.timer import CpuStepTimer, GradientReadiness, NoTimer, StepTimer
from stepscope.predict.promise import promise_of
from stepscope.rank.mesh import Mesh
from stepscope.rank.precision import open_numerics
from stepscope.rank.sampling import Sampling, plan_epoch
from stepscope.rank.strategies import REGISTRY as DEEDS
from stepscope.rank.training import Training
from stepscope.rank.workloads import REGISTRY as MODULES
from stepscope.records.cell import CellSpec

ROUNDS = 12
STEPS = 40
CELL = CellSpec(
    cell_id="x", workload="mlp", model={"layers": [512] * 12}, dataset="synthetic", dataset_options={},
    data_digest="", strategy="single", strategy_options={}, precision="fp32", accumulation=1, world_size=1,
    micro_batch=48, global_batch=48, batch_rule="micro_batch", optimizer="sgd", lr=0.01, momentum=0.0, lr_warmup=0,
    weight_decay=0.0, clip=None, loss="ce", steps=10, epochs=None, seed=1, num_workers=0, pin_memory=False,
    persistent_workers=False, cudnn_benchmark=False, device="cpu", backend="gloo", threads_per_rank=1,
)  # fmt: skip


def _training(timer: StepTimer, *, hooks: bool) -> Training:
    promise = promise_of(CELL)
    torch.manual_seed(1)
    task = MODULES.load("mlp")(promise.model, promise.needs, "ce")
    numerics = open_numerics("fp32", torch.device("cpu"))
    module = numerics.prepare(task.module)
    readiness = GradientReadiness(module, timer) if hooks else None
    mesh = Mesh(rank=0, world_size=1, device=torch.device("cpu"), backend="gloo")
    session = DEEDS.load("single")(module, mesh, promise.strategy_options)
    return Training(CELL, task, session, numerics, timer, readiness)


def main() -> None:
    heading("instrumentation: timed step / same step with no-op instruments")
    torch.set_num_threads(1)
    sampling = Sampling(num_samples=48, world_size=1, micro_batch=48)
    window = plan_epoch(sampling, 0)[0]
    batch = (torch.randn(48, 784), torch.randint(0, 10, (48,)))
    plain = Regions(enabled=False)

    def a_round(training: Training) -> list[float]:
        times = []
        for _ in range(STEPS):
            before = time.perf_counter()
            training.step(window, repeat(batch), plain)
            times.append(time.perf_counter() - before)
        return times

    timed, bare = _training(CpuStepTimer(), hooks=True), _training(NoTimer(), hooks=False)
    a, b, again = [], [], []
    for number in range(ROUNDS + 1):
        rounds = (a_round(timed), a_round(bare), a_round(timed))
        if number:  # the first is warm-up
            for kept, times in zip((a, b, again), rounds, strict=True):
                kept.append(times)
    step_ms = statistics.median(t for times in b for t in times) * 1e3
    print(
        f"step without instruments: {step_ms:.2f} ms, {len(list(timed.optimizer.param_groups[0]['params']))} parameters"
    )
    show("timed / bare", compare(a, b, again), bar="at most 1.02 at a 10 ms step")
    _alone(timed, step_ms)


def _alone(training: Training, step_ms: float) -> None:
    """The instruments' own time, without the step around them: below the A/A spread, a ratio cannot show it."""
    parameters = len(training.optimizer.param_groups[0]["params"])
    timer = CpuStepTimer()
    times = []
    for _ in range(2000):
        before = time.perf_counter_ns()
        timer.start()
        for mark in (0, 1, 2, 4, 5):
            timer.mark(mark)
        for _ in range(parameters):
            timer.ready()
        timer.stop()
        times.append(time.perf_counter_ns() - before)
    alone_us = statistics.median(times) / 1e3
    print(f"clock reads and split alone: {alone_us:.1f} us = {alone_us / step_ms / 10:.3f} % of this step")


if __name__ == "__main__":
    main()

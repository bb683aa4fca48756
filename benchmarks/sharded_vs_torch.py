"""`fsdp2` and `tensor_parallel` against the same training written with torch alone: 2 gloo ranks, rounds taking turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks._report import compare, heading, show

ROUNDS, STEPS, WARMUP, BATCH = 10, 8, 2, 4
MODEL = {"d_model": 128, "n_heads": 4, "num_layers": 4, "max_seq_len": 32, "vocab_size": 1024}
MESHES: dict[str, dict[str, int]] = {"fsdp2": {}, "tensor_parallel": {"tp": 2}}


def main() -> None:
    heading(f"our strategy / torch alone, gpt 4x128 s32, {BATCH} samples, AdamW, 2 gloo ranks on loopback")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "-m", "benchmarks.sharded_vs_torch", "--rank"]  # fmt: skip
    done = subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            result = compare(found["ours"], found["torch"], found["again"])
            show(f"{found['strategy']} ({found['policy']})", result, bar="1.0 within the interval")


def _rank() -> None:
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from stepscope.rank.mesh import Mesh
    from stepscope.rank.startup import use_batch_scheduling
    from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
    from stepscope.rank.workloads import REGISTRY as MODULES
    from stepscope.records.plan import InputNeeds
    from stepscope.strategies import REGISTRY as SPECS
    from stepscope.workloads import REGISTRY as WORKLOADS

    policy = use_batch_scheduling()
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    rank, world = dist.get_rank(), dist.get_world_size()
    family = WORKLOADS.load("gpt")
    options = family.options(**MODEL)
    needs = InputNeeds(kind="lm", seq_len=MODEL["max_seq_len"], vocab_size=MODEL["vocab_size"])
    facts = family.facts(options, needs, "float32")
    whole = init_device_mesh("cpu", (world,))

    def model() -> Any:
        torch.manual_seed(1)
        return MODULES.load("gpt")(options, needs, "ce")

    def ours(strategy: str) -> Callable[[Any, Any], None]:
        task, spec = model(), SPECS.load(strategy)
        mesh = Mesh(rank=rank, world_size=world, device=torch.device("cpu"), backend="gloo", shape=MESHES[strategy])
        session = IMPLEMENTATIONS.load(strategy)(task.module, mesh, spec.options(), facts)
        optimizer = session.optimizer(torch.optim.AdamW, lr=1e-3)

        def step(x: Any, y: Any) -> None:
            with session.micro_step(last=True):
                loss = task.loss_sum(session.trainable(x), y) * (session.loss_factor / BATCH / mesh.data_size)
                loss.backward()
            session.finish()
            optimizer.step()
            session.zero_grad()

        return step

    def alone(strategy: str) -> Callable[[Any, Any], None]:
        module = model().module
        if strategy == "fsdp2":
            for block in module.blocks:
                fully_shard(block, mesh=whole)
            fully_shard(module, mesh=whole, reshard_after_forward=False)
            groups: Any = module.parameters()
        else:
            plan: dict[str, Any] = {"tokens": RowwiseParallel(input_layouts=Replicate()),
                                    "head": ColwiseParallel(output_layouts=Replicate())}  # fmt: skip
            for number in range(MODEL["num_layers"]):
                for name, style in (
                    ("query_key_value", ColwiseParallel), ("attention_out", RowwiseParallel),
                    ("feedforward_in", ColwiseParallel), ("feedforward_out", RowwiseParallel),
                ):  # fmt: skip
                    plan[f"blocks.{number}.{name}"] = style()
            parallelize_module(module, whole, plan)
            assert module.head.weight.placements == (Shard(0),)
            # torch's multi-tensor update takes no mixture of divided and whole parameters
            divided = [p for p in module.parameters() if isinstance(p, DTensor)]
            groups = [{"params": divided}, {"params": [p for p in module.parameters() if not isinstance(p, DTensor)]}]
        optimizer = torch.optim.AdamW(groups, lr=1e-3)

        def step(x: Any, y: Any) -> None:
            torch.nn.functional.cross_entropy(module(x).flatten(0, 1), y.flatten()).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

        return step

    def a_round(strategy: str, made: Callable[[str], Callable[[Any, Any], None]]) -> list[float]:
        step = made(strategy)
        generator = torch.Generator().manual_seed(1 + (rank if strategy == "fsdp2" else 0))
        x, y = torch.randint(MODEL["vocab_size"], (2, BATCH, MODEL["max_seq_len"]), generator=generator)
        times = []
        for _ in range(WARMUP + STEPS):
            before = time.perf_counter()
            step(x, y)
            times.append(time.perf_counter() - before)
        slowest = torch.tensor(times[WARMUP:], dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return slowest.tolist()

    for strategy in MESHES:
        found: dict[str, Any] = {"strategy": strategy, "policy": policy, "ours": [], "torch": [], "again": []}
        for number in range(ROUNDS + 1):
            for key, made in (("ours", ours), ("torch", alone), ("again", ours)):
                times = a_round(strategy, made)
                if number:
                    found[key].append(times)
        if rank == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["--rank"]:
        _rank()
    else:
        main()

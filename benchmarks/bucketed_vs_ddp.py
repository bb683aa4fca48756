"""Our `bucketed` strategy against torch DDP at the same bucket size: 2 gloo ranks, rounds taking turns in one world."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from benchmarks._report import compare, heading, show

ROUNDS, STEPS, CAPS_MB = 10, 12, (1.0, 4.0, 25.0)


def main() -> None:
    heading("bucketed / torch DDP at the same bucket size, 8 x Linear(1024), batch 64, 2 gloo ranks on loopback")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
               "-m", "benchmarks.bucketed_vs_ddp", "--rank"]  # fmt: skip
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            found = json.loads(line)
            result = compare(found["bucketed"], found["ddp"], found["again"])
            show(f"{found['cap_mb']:g} MiB ({found['policy']})", result, bar="1.0 within the interval")


def _rank() -> None:
    import torch
    import torch.distributed as dist
    from torch import nn

    from stepscope.rank.mesh import Mesh
    from stepscope.rank.startup import use_batch_scheduling
    from stepscope.rank.strategies import REGISTRY as IMPLEMENTATIONS
    from stepscope.strategies import REGISTRY as SPECS

    policy = use_batch_scheduling()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.set_num_threads(1)
    mesh = Mesh(rank=rank, world_size=world, device=torch.device("cpu"), backend="gloo")
    torch.manual_seed(1 + rank)
    x, y = torch.randn(64, 1024), torch.randn(64, 1024)

    def a_round(name: str, cap_mb: float) -> list[float]:
        torch.manual_seed(1)
        module = nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(1024, 1024), nn.ReLU())])
        options = SPECS.load(name).options.model_validate({"bucket_cap_mb": cap_mb})
        session = IMPLEMENTATIONS.load(name)(module, mesh, options)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
        times = []
        for step in range(STEPS + 3):
            before = time.perf_counter()
            with session.micro_step(last=True):
                loss = (session.trainable(x) - y).pow(2).mean() * session.loss_factor / world
                loss.backward()
            session.finish()
            optimizer.step()
            session.zero_grad()
            if step >= 3:
                times.append(time.perf_counter() - before)
        session.close()
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return slowest.tolist()

    for cap_mb in CAPS_MB:
        found: dict[str, object] = {
            "cap_mb": cap_mb,
            "policy": policy,
            "bucketed": [],
            "ddp": [],
            "again": [],
        }
        for number in range(ROUNDS + 1):
            for key, name in (("bucketed", "bucketed"), ("ddp", "ddp"), ("again", "bucketed")):
                times = a_round(name, cap_mb)
                if number:
                    found[key].append(times)  # type: ignore[attr-defined]
        if rank == 0:
            print(json.dumps(found), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    if sys.argv[1:] == ["--rank"]:
        _rank()
    else:
        main()

"""The profiler's own traces of one small script on 1 and on 2 gloo ranks: a scaling verdict with its budget."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from tests.torch_forks import ForkedPopen, shared_server

from stepscope.results.open import load_evidence
from stepscope.results.scaling_budget import verdict

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
from torch.profiler import ProfilerActivity, profile, schedule

rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(128, 128) for _ in range(3))))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
batch = torch.randn(64 // world, 128)
with profile(
    activities=[ProfilerActivity.CPU],
    schedule=schedule(wait=1, warmup=1, active=7, repeat=1),
    record_shapes=True,
    on_trace_ready=lambda p: p.export_chrome_trace(f"{folder}/rank{rank}.json"),
) as profiler:
    for _ in range(9):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
        profiler.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scaling")
    (root / "train.py").write_text(SCRIPT)
    jobs = []
    for world in (1, 2):
        folder = root / f"n{world}"
        folder.mkdir()
        for rank in range(world):
            words = [sys.executable, str(root / "train.py"), str(rank), str(world), str(folder)]
            jobs.append(ForkedPopen(words, server=shared_server(), stdout=PIPE, stderr=STDOUT, text=True))
    for each in jobs:
        said, _ = each.communicate(timeout=120)
        assert each.returncode == 0, said
    return root


def test_traces_of_one_script_on_one_and_two_ranks_give_a_scaling_verdict(traced: Path) -> None:
    evidence = load_evidence([traced / "n1", traced / "n2"])
    (budget,) = evidence.scaling_budgets
    (reading,) = budget.readings
    assert (budget.base_world_size, budget.world_size, reading.scaling) == (1, 2, "strong")
    assert "0.50 of the FLOP" in (budget.decided_by or "")
    assert reading.low is not None
    assert reading.low <= reading.speedup <= (reading.high or 0)
    assert sum(part.run_ns for part in reading.parts) == pytest.approx(budget.time.value, rel=1e-6)
    assert sum(part.base_ns for part in reading.parts) == pytest.approx(budget.base_time.value, rel=1e-6)
    assert sum(part.lost_ns for part in reading.parts) == pytest.approx(reading.lost_ns, rel=1e-6, abs=10)
    (line,) = verdict(budget)
    assert line.startswith(f"strong scaling: {reading.speedup:.2f}x (95% interval ")
    together = load_evidence([traced])
    assert together.scaling_budgets[0].readings == budget.readings
    assert [each.left_out for each in together.files_found if each.kind.startswith("programs")] == ["not a measurement"]

"""What torch itself exports is read as meant: memory events, shapes, annotations; a scaling verdict of 1 and 2 ranks."""

from __future__ import annotations

import sys
from pathlib import Path
from subprocess import PIPE, STDOUT

import pytest
from tests.torch_forks import ForkedPopen, shared_server

from stepscope.core.errors import Unavailable
from stepscope.results.open import load_evidence
from stepscope.results.scaling_budget import verdict
from stepscope.traces.events import RankTrace, RankView
from stepscope.traces.load import load_traces
from stepscope.traces.memory import memory_timeline
from stepscope.traces.operators import operator_table
from stepscope.traces.sections import Wanted

pytestmark = pytest.mark.e2e

PROGRAM = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with profile(
    activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True,
    schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
    on_trace_ready=lambda p: p.export_chrome_trace(sys.argv[1]),
) as profiler:
    for step in range(4):
        with record_function("## forward ##"):
            loss = model(torch.randn(32, 64)).sum()
        if step == 2:
            with record_function("the big one"):
                big = torch.empty(25_000_000)
            del big
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
"""


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
def exported(tmp_path_factory: pytest.TempPathFactory) -> RankTrace:
    folder = tmp_path_factory.mktemp("export")
    file = folder / "rank-0.json"
    (folder / "program.py").write_text(PROGRAM)
    line = [sys.executable, str(folder / "program.py"), str(file)]
    assert ForkedPopen(line, server=shared_server()).wait(timeout=100) == 0
    (trace,) = load_traces(file).ranks
    return trace


def test_the_peak_of_memory_is_where_the_program_put_it(exported: RankTrace) -> None:
    found = memory_timeline(RankView(exported))
    assert not isinstance(found, Unavailable)
    (cpu,) = found
    assert cpu.device_type == "cpu"
    assert 100_000_000 <= cpu.peak.allocated_bytes < 101_000_000
    assert cpu.peak.annotations[-1] == "the big one"
    assert cpu.peak.operator == "aten::empty"
    assert cpu.peak.step in {s.step for s in cpu.steps}
    assert sorted(s.peak_bytes > 50_000_000 for s in cpu.steps) == [False, True]


def test_matrix_products_have_the_flop_of_the_model(exported: RankTrace) -> None:
    table = operator_table(RankView(exported, Wanted(sort="flop")))
    assert table is not None
    flop = {r.name: r.flop for r in table.rows}
    assert flop["aten::addmm"] == 2 * 2 * 32 * (64 * 128 + 128 * 10)  # two layers, two steps
    assert flop["aten::mm"] is not None
    # Backward: both gradients of the second layer, the first layer's weight alone (its input needs none).
    assert flop["aten::mm"] == 2 * 2 * 32 * (2 * 128 * 10 + 64 * 128)


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("scaling")
    (root / "train.py").write_text(SCRIPT)
    jobs = []
    for world, rank in ((1, 0), (2, 0), (2, 1)):
        (root / f"n{world}").mkdir(exist_ok=True)
        words = [sys.executable, str(root / "train.py"), str(rank), str(world), str(root / f"n{world}")]
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

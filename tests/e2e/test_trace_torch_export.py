"""What torch itself exports is read as meant: memory events, shapes, annotations of a small CPU run."""

from __future__ import annotations

import sys

import pytest
from tests.torch_forks import ForkedPopen, shared_server

from stepscope.core.errors import Unavailable
from stepscope.traces.activity import activity_of
from stepscope.traces.events import RankTrace
from stepscope.traces.load import load_traces
from stepscope.traces.memory import memory_timeline
from stepscope.traces.nesting import launches_of
from stepscope.traces.operators import operator_table
from stepscope.traces.steps import phase_spans

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
    found = memory_timeline(exported, phases=phase_spans(exported.events))
    assert not isinstance(found, Unavailable)
    (cpu,) = found
    assert cpu.device_type == "cpu"
    assert 100_000_000 <= cpu.peak.allocated_bytes < 101_000_000
    assert cpu.peak.annotations[-1] == "the big one"
    assert cpu.peak.operator == "aten::empty"
    assert cpu.peak.step in {s.step for s in cpu.steps}
    assert sorted(s.peak_bytes > 50_000_000 for s in cpu.steps) == [False, True]


def test_matrix_products_have_the_flop_of_the_model(exported: RankTrace) -> None:
    events = exported.events
    table = operator_table(exported, launches_of(events, activity_of(events).indices), sort="flop")
    assert table is not None
    flop = {r.name: r.flop for r in table.rows}
    assert flop["aten::addmm"] == 2 * 2 * 32 * (64 * 128 + 128 * 10)  # two layers, two steps
    assert flop["aten::mm"] is not None
    # Backward: both gradients of the second layer, the first layer's weight alone (its input needs none).
    assert flop["aten::mm"] == 2 * 2 * 32 * (2 * 128 * 10 + 64 * 128)

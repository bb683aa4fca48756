"""The window of `stepscope profile` on a job with torch: which steps it has, what it holds of them, what bounds it."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.runs import Cli

from stepscope.records.profile import WindowOfRank
from stepscope.store.layout import ProfileLayout
from stepscope.store.reader import read_record
from stepscope.traces.events import RankView
from stepscope.traces.load import load_file
from stepscope.traces.marks import step_marks
from stepscope.traces.rule_facts import step_flop

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

GROWS_BYTES, UNTIL = 40_000_000, 16
"""A step, up to this one: in the window alone more than the bound of a trace."""
JOB = f"""
import time
import torch
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)])
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, kept = torch.zeros(32, 64), []
for step in range(40):
    time.sleep(0.03)  # a busy machine must not make three profiled steps three times as long as the others
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step < {UNTIL}:
        kept.append(torch.ones({GROWS_BYTES // 4}))
"""


def _profiled(cli: Cli, folder: Path, *options: str) -> tuple[WindowOfRank, Any]:
    """The report of the window, and its trace as text."""
    script = folder / "job.py"
    script.write_text(JOB)
    done = cli("profile", "-o", str(folder / "p"), "--wait", "5", *options, "--", sys.executable, str(script))
    assert done.code == 0, done.err
    (path,) = ProfileLayout(folder / "p").window_ranks(1)
    report = read_record(path, WindowOfRank)
    assert report.file is not None
    return report, json.loads(gzip.decompress(Path(report.file).read_bytes()))


def _numbers(trace: Any) -> list[int]:
    names = (e["name"] for e in trace["traceEvents"] if e.get("cat") == "user_annotation")
    return [int(name.partition("#")[2]) for name in names if name.startswith("ProfilerStep#")]


def _with_shapes(trace: Any) -> set[int]:
    """Steps of which an operator has the shapes of its inputs."""
    spans = [(e["ts"], e["ts"] + e["dur"], e["name"]) for e in trace["traceEvents"] if "ProfilerStep#" in e["name"]]
    shaped = [e["ts"] for e in trace["traceEvents"] if "Input Dims" in e.get("args", {})]
    return {int(name.partition("#")[2]) for begin, end, name in spans if any(begin <= at < end for at in shaped)}


def test_growth_of_the_jobs_memory_does_not_end_the_window_and_its_last_steps_have_the_shapes(
    cli: Cli, tmp_path: Path
) -> None:
    report, trace = _profiled(cli, tmp_path)
    steps = len(report.profiled_ns)
    assert report.bounded is None
    assert 8 <= steps == report.last_step - report.first_step
    numbers = _numbers(trace)
    last = report.last_step  # between the two sessions a step is not recorded
    assert numbers == [*range(report.first_step, last), last + 1, last + 2]
    assert _with_shapes(trace) == set(numbers[-2:])
    ids = [e["args"]["External id"] for e in trace["traceEvents"] if e.get("cat") == "cpu_op"]
    assert len(ids) == len(set(ids))
    assert report.file is not None
    read = load_file(Path(report.file))
    assert step_marks(read.events).numbers.tolist() == numbers[:-2]
    products = 4 + 4 + 3  # forward, gradients of weights, of inputs but the first
    assert step_flop(RankView(read)) == 2 * 32 * 64 * 64 * products
    assert sorted(path.name for path in Path(report.file).parent.iterdir()) == ["rank-00000.json.gz"]


@pytest.mark.parametrize(("option", "shaped"), [("--shapes", 4), ("--no-shapes", 0)])
def test_shapes_that_were_asked_for_are_those_of_all_steps_or_none(
    cli: Cli, tmp_path: Path, option: str, shaped: int
) -> None:
    report, trace = _profiled(cli, tmp_path, "--steps", "4", option)
    assert _numbers(trace) == list(range(report.first_step, report.first_step + 4))
    assert len(_with_shapes(trace)) == shaped

"""Idle time by cause: a planted late host, loader or wait shows under its own name."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.hand_events import op, trace
from tests.trace_builder import build, write_job

from stepscope.report.views import trace_idle
from stepscope.traces.job import analyse_job
from stepscope.traces.rank_pass import Wanted, analyse
from stepscope.traces.verdict import verdict_of

OURS = {
    "launch": ("host_late", "launch_latency"),
    "data": ("data",),
    "sync": ("sync",),
}


@pytest.mark.parametrize("kind", ["launch", "data", "sync"])
def test_the_late_rank_idles_for_the_planted_cause(kind: str, tmp_path: Path) -> None:
    job = build(world=2, steps=4, sync=True, data_ns=100_000, late={1: 500_000}, late_kind=kind)
    summary = analyse_job([write_job(job, tmp_path)], wanted=Wanted(sections=frozenset({"idle"})))
    late, punctual = summary.ranks[1], summary.ranks[0]
    found = {i.cause: i.idle_ns for i in late.idle}
    planted = job.truth[1].idle_by_cause_ns[kind]
    assert sum(found.get(c, 0) for c in OURS[kind]) == pytest.approx(planted, rel=0.02)
    assert max(found, key=lambda c: found[c]) in OURS[kind]
    assert sum(i.idle_ns for i in punctual.idle) < sum(found.values())


def test_a_cpu_job_idles_outside_operators(tmp_path: Path) -> None:
    job = build(device="gloo", world=2, steps=4, data_ns=300_000)
    summary = analyse_job([write_job(job, tmp_path)], wanted=Wanted(sections=frozenset({"idle"})))
    for each in summary.ranks:
        assert each.budget is not None
        found = {i.cause: i.idle_ns for i in each.idle}
        assert set(found) == {"data", "outside_operators"}
        assert sum(found.values()) == each.budget.parts.idle_ns
    assert [row.values[1].text for row in trace_idle.build(summary).rows[:2]] == [
        "the host was loading data",
        "no operator ran: Python between operators, or waiting",
    ]


def test_a_cpu_job_that_is_mostly_python_between_operators_is_overhead_bound() -> None:
    made = trace(op("aten::mm", 0, 100), op("aten::mm", 900, 1000))
    found = analyse(made, Wanted(sections=frozenset({"idle"})))
    assert [(i.cause, i.idle_ns, i.gap_count) for i in found.idle] == [("outside_operators", 800, 1)]
    assert found.budget is not None
    verdict = verdict_of(found.budget, found.idle)
    assert (verdict.kind, verdict.share) == ("overhead", 0.8)


def test_a_launch_that_was_not_recorded_is_said_so(tmp_path: Path) -> None:
    folder = write_job(build(world=2), tmp_path)
    for file in folder.iterdir():
        file.write_text(file.read_text().replace('"cat": "cuda_runtime"', '"cat": "python_function"'))
    summary = analyse_job([folder], wanted=Wanted(sections=frozenset({"idle"})))
    for each in summary.ranks:
        assert {i.cause for i in each.idle} <= {"unknown"}
        assert {s.boundary for s in each.steps} == {"host"}

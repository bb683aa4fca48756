"""A trace whose steps the profiler lengthens: what is said of it, and of findings that rest on it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.borders import traced_cell
from tests.diaries import job, planted
from tests.trace_evidence import found, generated, quiet

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rules import REGISTRY
from stepscope.diagnose.rules.profiler_overhead import RULE
from stepscope.records.profile import WindowRequest
from stepscope.results.diary import step_interval
from stepscope.results.evidence import Evidence, TraceEvidence


@pytest.mark.parametrize(("longer", "share"), [(7.51, 1 - 1 / 7.51), (1.26, 1 - 1 / 1.26), (1.24, None), (0.9, None)])
def test_the_profilers_part_of_the_step_decides(tmp_path: Path, longer: float, share: float | None) -> None:
    evidence = traced_cell(tmp_path, longer=longer)
    if share is None:
        assert quiet(RULE, evidence)
        return
    said = found(RULE, evidence)
    assert said.casts_doubt["c"].reach == pytest.approx(share)
    assert (said.job, len(said.advice)) == ("c", 1)  # bench cannot profile with less


@pytest.mark.parametrize(("longer", "doubted"), [(7.5, True), (1.3, False)])
def test_findings_no_larger_than_the_profilers_part_are_in_doubt_and_come_after_it(
    tmp_path: Path, longer: float, doubted: bool
) -> None:
    """The device waits for late launches 40% of the trace: more than the profiler's 23%, less than its 87%."""
    evidence = traced_cell(tmp_path, longer=longer, idle=0.4)
    rules = [REGISTRY.load(key) for key in ("launch_bound", "profiler_overhead")]
    told = diagnose(evidence, rules=rules).findings
    assert [f.rule for f in told] == ["profiler-overhead", "launch-bound"][:: 1 if doubted else -1]
    late = next(f for f in told if f.rule == "launch-bound")
    assert bool(late.doubts) is doubted
    assert late.certainty.startswith("doubtful") is doubted


@pytest.mark.parametrize("collect", [(), ("stacks", "memory")])
def test_a_job_of_profile_is_compared_with_its_own_timed_steps(tmp_path: Path, collect: tuple[str, ...]) -> None:
    folder = planted(tmp_path / "job")
    profiled = job(folder)
    assert profiled.steps is not None
    request = WindowRequest(steps=8, wait="auto", warmup=1, fixed_step=20, collect=collect, sampled=("shapes",))
    profiled = replace(profiled, record=replace(profiled.record, first=request))
    timed = step_interval(profiled.steps).value
    summary = generated(tmp_path, world=2).traces[0].summary
    trace = TraceEvidence(name="job", summary=summary, job=folder)
    for longer, fires in ((2.0, True), (1.1, False)):
        told = RULE.check(
            Evidence(
                sources=(),
                traces=(trace,),
                profiled=(replace(profiled, profiled_ns=((round(timed * longer),) * 3,) * 2),),
            )
        )
        assert isinstance(told, tuple) is fires
        if isinstance(told, tuple):
            assert told[0].casts_doubt["job"].reach == pytest.approx(0.5, abs=0.01)
            assert len(told[0].advice) == 1 + bool(collect)  # what is not on cannot be left out


def test_two_runs_of_one_matrix_are_compared_each_with_its_own_trace(tmp_path: Path) -> None:
    evidence = traced_cell(tmp_path, longer=2.0)
    ((cell,), (trace,)) = evidence.cells, evidence.traces
    assert cell.run.step_ns is not None
    quick = replace(cell.run.step_ns, value=cell.run.step_ns.value / 10)
    other = replace(cell, run=replace(cell.run, run_id="other/c", source="other", step_ns=quick))
    told = found(RULE, replace(evidence, cells=(other, cell), traces=(replace(trace, source=cell.run.source),)))
    assert told.casts_doubt["c"].reach == pytest.approx(0.5)

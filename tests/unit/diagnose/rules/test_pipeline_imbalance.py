"""One slow stage of a pipeline."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sharded_jobs import folder_of, pipeline, traces_of, used_by
from tests.trace_evidence import found, generated, quiet, skipped, traced

from stepscope.diagnose.rules.pipeline_imbalance import RULE
from stepscope.traces.job import analyse_job


def test_a_slow_stage_is_named_with_every_stages_compute_and_bubble(tmp_path: Path) -> None:
    finding = found(RULE, traces_of(pipeline(slow={2: 1.6}), tmp_path))
    assert finding.title.startswith("pipeline stage 2 of 4 (rank 2) computes 1.6 times as long as the others")
    assert "0: 7.35 ms 53%" in finding.evidence[0]
    assert "2: 11.8 ms 22%" in finding.evidence[0]
    assert "as many kernels, which take longer" in finding.evidence[1]


@pytest.mark.parametrize(("slow", "fires"), [(1.3, True), (1.1, False)])
def test_borderline_how_slow(tmp_path: Path, slow: float, fires: bool) -> None:
    evidence = traces_of(pipeline(slow={1: slow}), tmp_path)
    assert found(RULE, evidence) if fires else "1.10 times as long" in quiet(RULE, evidence)


def test_even_stages_are_quiet(tmp_path: Path) -> None:
    assert "evening out returns 0%" in quiet(RULE, traces_of(pipeline(), tmp_path))


def test_the_option_is_named_as_megatron_calls_it(tmp_path: Path) -> None:
    evidence = used_by(traces_of(pipeline(slow={0: 2.0}), tmp_path), frameworks=("megatron",))
    assert any("--decoder-first-pipeline-num-layers" in a.text for a in found(RULE, evidence).advice)


def test_a_pipeline_that_is_not_all_there_or_none_is_skipped(tmp_path: Path) -> None:
    folder = folder_of(pipeline(slow={2: 1.6}), tmp_path / "some")
    (folder / "rank-3.json").unlink()
    assert "not all among the traces" in skipped(RULE, traced(analyse_job(folder)))
    assert "no pipeline" in skipped(RULE, generated(tmp_path / "ddp", world=2))

"""One slow stage of a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.evidence import evidence
from tests.pipelines import MS, pipeline_cell
from tests.sharded_jobs import folder_of, pipeline, traces_of, used_by
from tests.trace_evidence import cut_short, found, generated, skipped, traced

from stepscope.diagnose.rules.pipeline_imbalance import RULE
from stepscope.predict.pipeline import StageTime
from stepscope.records.finding import Quiet
from stepscope.records.mesh import PipelineLayout
from stepscope.traces.job import analyse_job


def test_a_slow_stage_is_named_with_every_stages_compute_and_bubble(tmp_path: Path) -> None:
    finding = found(RULE, traces_of(pipeline(slow={2: 1.6}), tmp_path))
    assert finding.title.startswith("pipeline imbalance: stage 2 (rank 2) computes 1.60x")
    assert "0: 7.35 ms, 53%" in finding.evidence[0]
    assert "2: 11.8 ms, 22%" in finding.evidence[0]
    assert "as many kernels, which take longer" in finding.evidence[1]


def test_the_option_is_named_as_megatron_calls_it(tmp_path: Path) -> None:
    evidence = used_by(traces_of(pipeline(slow={0: 2.0}), tmp_path), frameworks=("megatron",))
    assert any("--decoder-first-pipeline-num-layers" in a.text for a in found(RULE, evidence).advice)


def test_stages_are_not_compared_where_the_file_of_one_is_cut(tmp_path: Path) -> None:
    folder = folder_of(pipeline(), tmp_path / "cut")
    cut_short(folder / "rank-3.json", 0.7)
    assert skipped(RULE, traced(analyse_job(folder))) == "the trace of rank 3 is truncated: what it lacks is unknown"


def test_a_pipeline_that_is_not_all_there_or_none_is_skipped(tmp_path: Path) -> None:
    folder = folder_of(pipeline(slow={2: 1.6}), tmp_path / "some")
    (folder / "rank-3.json").unlink()
    assert "not all among the traces" in skipped(RULE, traced(analyse_job(folder)))
    assert "no pipeline" in skipped(RULE, generated(tmp_path / "ddp", world=2))


def staged_cell(first: float, second: float, split: tuple[int, int]) -> Any:
    layout = PipelineLayout(schedule="1f1b", ranks=2, micro_batches=8)
    times = [StageTime(forward_ns=n * MS, backward_ns=2 * n * MS) for n in (first, second)]
    cell = pipeline_cell(layout, times, split)
    return evidence(cell.run, cells=(cell,))


def test_a_measured_pipeline_names_the_split_that_evens_it_out() -> None:
    (found,) = RULE.check(staged_cell(6, 2, (6, 2)))
    assert found.title == "pipeline stage 0 of 2 computes 3.0 times as long as the others: 25% of the step"
    assert found.ranks == (0,)
    assert found.advice[0].text == "split the blocks as [4, 4]: `strategy_options: {split: [4, 4]}`"


def test_one_block_a_stage_cannot_be_evened_out() -> None:
    outcome = RULE.check(staged_cell(6, 2, (1, 1)))
    assert isinstance(outcome, Quiet)
    assert "evening out returns 0% of the step" in outcome.looked_at

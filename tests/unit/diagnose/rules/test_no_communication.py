"""Zero communication on several ranks is a finding about the capture, never a silent zero."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.trace_builder import build, write_job
from tests.trace_evidence import cut_short, found, generated, quiet, skipped, traced

from stepscope.diagnose.rules.no_communication import RULE
from stepscope.records.profile import JobSetup, LoaderSetup
from stepscope.results.evidence import Evidence
from stepscope.traces.job import analyse_job

KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def silenced(folder: Path, ranks: tuple[int, ...]) -> Evidence:
    """A job of two ranks; these ranks run something else in place of communication."""
    return renamed(folder, ranks, (KERNEL, "someKernel"), ("record_param_comms", "aten::mul"), ("c10d::", "a::"))


def renamed(folder: Path, ranks: tuple[int, ...], *names: tuple[str, str]) -> Evidence:
    job = write_job(build(world=2, nccl_args=False), folder)
    for rank in ranks:
        file = job / f"rank-{rank}.json"
        text = file.read_text()
        for old, new in names:
            text = text.replace(old, new)
        file.write_text(text)
    return traced(analyse_job(job))


def test_a_job_of_several_ranks_without_communication_fires(tmp_path: Path) -> None:
    finding = found(RULE, silenced(tmp_path, (0, 1)))
    assert "no communication in the trace of a job of 2 ranks" in finding.title
    assert finding.severity == "warning"
    assert finding.stake_fraction is None


def test_borderline_one_silent_rank_of_two_is_not_the_whole_job(tmp_path: Path) -> None:
    quiet(RULE, silenced(tmp_path, (1,)))


def test_kernels_with_names_of_no_library_are_communication_where_a_collective_launched_them(tmp_path: Path) -> None:
    quiet(RULE, renamed(tmp_path, (0, 1), (KERNEL, "someKernel")))


def test_it_stays_silent_where_a_file_is_cut(tmp_path: Path) -> None:
    silenced(tmp_path, (0, 1))
    cut_short(next(tmp_path.rglob("rank-1.json")), 0.8)
    assert "rank 1 is truncated" in skipped(RULE, traced(analyse_job(tmp_path)))


def test_it_stays_silent_where_many_kernels_are_of_unknown_kind(tmp_path: Path) -> None:
    names = ((KERNEL, "someKernel"), ("record_param_comms", "MyOperator"), ("c10d::", "Mine"))
    assert "of unknown kind" in skipped(RULE, renamed(tmp_path, (0, 1), *names))


def forgotten(folder: Path, *parameters: int, divided: bool = False) -> Evidence:
    """Ranks whose optimizers step so many parameters, profiled by `stepscope profile`; the traces name no world size."""
    (job,) = silenced(folder, (0, 1)).traces
    ranks = tuple(
        replace(p, facts=replace(p.facts, setup=JobSetup(parameters=n, loader=LoaderSetup(divided=divided))))
        for p, n in zip(job.summary.ranks, parameters, strict=True)
    )
    return traced(replace(job.summary, ranks=ranks, world_size=None))


def test_ranks_that_train_the_same_model_are_told_that_they_never_communicate(tmp_path: Path) -> None:
    finding = found(RULE, forgotten(tmp_path, 1000, 1000))
    assert finding.priority == "wrong"
    assert finding.severity == "problem"
    assert [a.text.partition(":")[0] for a in finding.advice] == [
        "wrap the model",
        "give each rank its share of the data",
    ]
    assert not any("capture" in a.text for a in finding.advice)


def test_whole_steps_of_one_rank_are_enough_and_less_sure(tmp_path: Path) -> None:
    (both,) = forgotten(tmp_path, 1000, 1000).traces
    finding = found(RULE, traced(replace(both.summary, ranks=both.summary.ranks[:1], world_size=2)))
    assert finding.advice[0].text.startswith("wrap the model")
    assert finding.confidence.startswith("likely")
    assert len(finding.evidence) == 1


def test_ranks_that_share_their_data_are_not_told_to(tmp_path: Path) -> None:
    assert not any("DistributedSampler" in a.text for a in found(RULE, forgotten(tmp_path, 9, 9, divided=True)).advice)


def test_ranks_with_different_models_may_be_jobs_of_their_own(tmp_path: Path) -> None:
    assert found(RULE, forgotten(tmp_path, 1000, 2000)).severity == "info"


@pytest.mark.parametrize("world", [1, 2])
def test_files_that_hold_nothing_are_skipped(tmp_path: Path, world: int) -> None:
    job = generated(tmp_path, world=world).traces[0]
    empty = replace(job.summary, ranks=tuple(replace(p, budget=None) for p in job.summary.ranks))
    assert "no device work, operators" in skipped(RULE, traced(empty))

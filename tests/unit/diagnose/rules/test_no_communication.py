"""Zero communication on several ranks is a finding about the capture, never a silent zero."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.trace_builder import build, write_job
from tests.trace_evidence import found, generated, quiet, skipped, traced

from stepscope.diagnose.rules.no_communication import RULE
from stepscope.results.evidence import Evidence
from stepscope.traces.job import analyse_job


def silenced(folder: Path, ranks: tuple[int, ...]) -> Evidence:
    """A job of two ranks; on these ranks the communication kernels have names that no library uses."""
    job = write_job(build(world=2, nccl_args=False), folder)
    for rank in ranks:
        file = job / f"rank-{rank}.json"
        file.write_text(file.read_text().replace("ncclDevKernel", "someKernel"))
    return traced(analyse_job(job))


def test_a_job_of_several_ranks_without_communication_fires(tmp_path: Path) -> None:
    finding = found(RULE, silenced(tmp_path, (0, 1)))
    assert "no communication in the trace of a job of 2 ranks" in finding.title
    assert finding.severity == "warning"
    assert finding.stake_fraction is None


def test_a_job_that_communicates_is_quiet(tmp_path: Path) -> None:
    assert "of communication on the median of 2 ranks" in quiet(RULE, generated(tmp_path, world=2))


def test_a_single_rank_may_be_silent(tmp_path: Path) -> None:
    assert "one rank" in quiet(RULE, generated(tmp_path, world=1))


def test_borderline_one_silent_rank_of_two_is_not_the_whole_job(tmp_path: Path) -> None:
    quiet(RULE, silenced(tmp_path, (1,)))


@pytest.mark.parametrize("world", [1, 2])
def test_files_that_hold_nothing_are_skipped(tmp_path: Path, world: int) -> None:
    job = generated(tmp_path, world=world).traces[0]
    empty = replace(job.summary, ranks=tuple(replace(p, budget=None) for p in job.summary.ranks))
    assert "no device work, operators" in skipped(RULE, traced(empty))

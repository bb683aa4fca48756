"""Traces whose files are cut: no finding claims more than what is left can carry."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_builder import build, write_job

from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Diagnosis
from stepscope.results.open import load_evidence


def cut_job(folder: Path, *, part: float, ranks: int = 2) -> Diagnosis:
    """What is said of a job on 2 ranks, the files of the first ``ranks`` cut behind this part of their text."""
    job = write_job(
        build(shape="ddp", world=2, steps=4, late={1: 900_000}, transfer_ns=400_000, overlap=False), folder / "job"
    )
    for rank in range(ranks):
        path = job / f"rank-{rank}.json"
        text = path.read_text()
        path.write_text(text[: int(len(text) * part)])
    return diagnose(load_evidence([job]))


@pytest.mark.parametrize("part", [0.05, 0.15])
def test_a_trace_without_a_step_that_is_known_to_be_whole_supports_no_finding(tmp_path: Path, part: float) -> None:
    found = cut_job(tmp_path, part=part)
    assert found.findings == ()
    reasons = {each.reason for each in found.skipped if each.rule in ("exposed-communication", "no-communication")}
    assert reasons == {"the trace of ranks 0, 1 is truncated, and no step in it is known to be whole"}


@pytest.mark.parametrize(("part", "ranks", "named"), [(0.8, 2, "ranks 0, 1"), (0.05, 1, "rank 0")])
def test_findings_of_a_job_with_a_cut_trace_say_so(tmp_path: Path, part: float, ranks: int, named: str) -> None:
    found = cut_job(tmp_path, part=part, ranks=ranks)
    assert found.findings
    why = f"the trace of {named} is truncated, how much is lost is unknown"
    assert {each.doubts for each in found.findings} == {(why,)}


def test_whole_traces_are_not_doubted(tmp_path: Path) -> None:
    found = cut_job(tmp_path, part=1.0)
    assert found.findings
    assert not [each for each in found.findings if each.doubts]

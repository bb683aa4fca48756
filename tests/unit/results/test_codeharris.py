"""The figures of document 002's own runs, and what its authors took for slow communication."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope.diagnose.engine import diagnose
from stepscope.records.finding import Diagnosis, Finding, Quiet
from stepscope.records.imported import Stated
from stepscope.records.training import ScalingRow
from stepscope.results.evidence import Evidence
from stepscope.results.open import load_evidence

FOLDER = Path(__file__).parents[3].parent / "shared" / "data" / "results" / "codeharris_multi-gpu-ddp"
RANKS = {"exp001": 1, "exp003": 8, "exp020": 1, "exp021": 4, "exp043": 1, "exp044": 4}

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not FOLDER.is_dir(), reason=f"no result set at {FOLDER}"),
]


@pytest.fixture(scope="module")
def found() -> Evidence:
    return load_evidence([FOLDER], stated=Stated(world_size=RANKS))


@pytest.fixture(scope="module")
def diagnosis(found: Evidence) -> Diagnosis:
    return diagnose(found)


def row(found: Evidence, run_id: str) -> ScalingRow:
    return next(r for r in found.scaling if r.run_id == run_id)


def only(diagnosis: Diagnosis, rule: str) -> Finding:
    (finding,) = [f for f in diagnosis.findings if f.rule == rule]
    return finding


def test_imdb_scales_as_the_document_says(found: Evidence) -> None:
    imdb = row(found, "exp021")
    assert f"{imdb.speedup:.2f}" == "3.49"
    assert f"{imdb.efficiency:.1%}" == "87.3%"
    assert f"{imdb.speedup_of_medians:.2f}" == "3.51"
    assert imdb.rating == "good"
    assert imdb.basis == "mean of epochs 2 to 20"
    assert imdb.low is not None
    assert imdb.high is not None
    assert 3.4 < imdb.low < 3.49 < imdb.high < 3.6
    targets = {t.accuracy: t for t in imdb.targets}
    assert f"{targets[0.75].speedup:.2f}" == "0.79"
    assert targets[0.77].reached_epochs is None
    assert targets[0.77].baseline_reached_epochs == 3
    rated = {r.run_id for r in found.scaling if r.rating is not None}
    assert rated == {"exp021", "exp044"}
    assert {r.run_id for r in found.scaling} == {"exp020", "exp021", "exp043", "exp044"}


def test_ag_news_is_duplicated_data_and_not_communication(diagnosis: Diagnosis) -> None:
    finding = only(diagnosis, "duplicated-data")
    said = " ".join(finding.evidence)
    assert "0.4686 on 4 ranks, 0.6022 on 1 rank: 22% lower" in said
    assert "epoch time: 1.25x" in said
    assert "communication-bound" not in {f.rule for f in diagnosis.findings}
    assert any(isinstance(q, Quiet) and q.rule == "communication-bound" for q in diagnosis.quiet)
    negative = only(diagnosis, "negative-scaling")
    assert negative.stake_fraction is None
    assert "explained by duplicated-data" in " ".join(negative.evidence)


def test_imdb_lost_quality_and_only_the_good_pair_is_praised(diagnosis: Diagnosis) -> None:
    finding = only(diagnosis, "quality-lost")
    assert "3.49x per epoch, 0.79x to validation accuracy 0.75, 0.77 never reached" in finding.title
    assert "3.49x on 4 ranks, 87.3% efficiency" in only(diagnosis, "good-scaling").title
    for finding in diagnosis.findings:
        assert "excellent" not in finding.title

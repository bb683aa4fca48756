"""The first screen of traces, runs and other results: one form, parts that add up, no praise without a look."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Ran

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.narrator import tree_rows
from stepscope.diagnose.screen import MOST_ALSO, Screen, further, of_evidence, of_traces
from stepscope.records.finding import Advice, Diagnosis, Finding, Quiet, Severity
from stepscope.report.render.screen import SCREEN_LINES, WIDEST
from stepscope.results.evidence import Evidence
from stepscope.results.open import load_evidence

pytestmark = pytest.mark.usefixtures("fresh_consoles")


@pytest.fixture
def straggler(ran: Ran, tmp_path: Path) -> Evidence:
    ran("example", tmp_path / "jobs")
    return load_evidence([tmp_path / "jobs" / "straggler"])


def finding(rule: str, severity: Severity = "problem", stake: float | None = None) -> Finding:
    return Finding(
        rule=rule, severity=severity, title=f"{rule} title", evidence=("a", "b"), stake_fraction=stake,
        confidence="measured", advice=(Advice(text="do it"),),
    )  # fmt: skip


def of(*findings: Finding, quiet: bool = True) -> Screen:
    looked = (Quiet(rule="other", looked_at="3%, limit 10%"),) if quiet else ()
    return of_evidence(Evidence(sources=()), Diagnosis(findings=findings, skipped=(), quiet=looked))


def test_the_window_of_traces_is_a_tree_that_adds_up(straggler: Evidence) -> None:
    """Waiting is marked, which the straggler's rule claims; the tree is that of the rank which the title's median is of."""
    diagnosis = diagnose(straggler)
    screen = of_traces(straggler.traces[0].summary, diagnosis, rests_on="8 ranks", more="stepscope diagnose X")
    assert screen.headline.startswith("Straggler: rank 5")
    assert sum(part.share for part in screen.tree) == pytest.approx(1, abs=1e-9)
    for _, part in tree_rows(screen.tree):
        assert not part.parts or sum(each.ns for each in part.parts) == pytest.approx(part.ns, abs=1)
    assert [part.key for _, part in tree_rows(screen.tree) if part.cause] == ["waiting"]
    computation = next(part for part in screen.tree if part.key == "computation")
    assert max(computation.by_rank, key=lambda each: each[1])[0] == 5
    assert screen.mark == "straggler"
    assert of_evidence(straggler, diagnosis).tree == screen.tree


def test_further_findings_are_named_and_counted() -> None:
    findings = [finding(f"rule{n}") for n in range(MOST_ALSO + 3)]
    diagnosis = Diagnosis(findings=tuple(findings), skipped=(), quiet=())
    assert further(diagnosis) == tuple(findings[1:])
    assert of(*findings).also == ("below: 6 problems",)


def test_an_observation_is_no_problem() -> None:
    screen = of(finding("good", "info"))
    assert (screen.headline, screen.tone) == ("Nothing stands out: 2 rules found no problem", "good")
    assert screen.advice == ()


def test_nothing_judged_is_no_good_news() -> None:
    screen = of(quiet=False)
    assert (screen.tone, screen.headline.startswith("Nothing was checked")) == ("warning", True)


def test_a_stake_is_said_as_a_factor_and_a_share() -> None:
    assert of(finding("x", stake=0.5)).stake == "up to 2x faster: 50% of the time"
    assert of(finding("x")).stake == ""


@pytest.mark.parametrize("columns", ["80", "120"])
def test_the_first_screen_fits_a_terminal(
    columns: str, ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ran("example", tmp_path / "jobs")
    for job in sorted((tmp_path / "jobs").iterdir()):
        _, out, _ = ran("diagnose", job)
        lines = out.splitlines()
        first = next((number for number, line in enumerate(lines) if line.startswith("  from ")), None)
        assert first is not None, job.name
        assert first < SCREEN_LINES, job.name
        free = [line for line in lines[:first] if "$ " not in line]
        assert max(map(len, free)) <= min(int(columns), WIDEST), job.name

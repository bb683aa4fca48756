from __future__ import annotations

from tests.evidence import evidence, run

from stepscope.diagnose.engine import check
from stepscope.diagnose.outcome import IN_FULL, folded
from stepscope.diagnose.rules.impossible_figures import RULE as IMPOSSIBLE
from stepscope.records.finding import Advice, Diagnosis, Finding
from stepscope.report.diagnose_document import metrics
from stepscope.results.evidence import Evidence


def finding(number: int, stake: float | None = None) -> Finding:
    return Finding(
        rule="some-rule",
        severity="problem",
        title=f"case {number}",
        evidence=("e",),
        stake_fraction=stake,
        confidence="measured",
        advice=(Advice(text="do"),),
        subject=f"group {number}",
    )


def test_few_stay_as_they_are_largest_stake_first() -> None:
    found = folded(finding(n, stake=n / 10) for n in range(IN_FULL + 1))
    assert [f.title for f in found] == ["case 4", "case 3", "case 2", "case 1", "case 0"]


def test_many_are_folded_into_lines_that_name_them() -> None:
    found = folded(finding(n, stake=1 - n / 100) for n in range(IN_FULL + 30))
    assert [f.title for f in found[:IN_FULL]] == ["case 0", "case 1", "case 2", "case 3"]
    assert len(found) == IN_FULL + 1
    last = found[-1]
    assert last.title == "some-rule: 30 more cases of the same kind"
    assert last.evidence[0] == "group 4: case 4"
    assert last.evidence[-1] == "and 18 more"
    assert (last.severity, last.stake_fraction, last.advice, last.subject) == ("problem", None, (), None)


def test_what_is_folded_counts_once() -> None:
    """``--fail-if 'problem_count > N'`` counts what is shown: four in full and the fold, however many are in it."""
    found = folded(finding(n, stake=1 - n / 100) for n in range(IN_FULL + 30))
    counted = metrics(Evidence(sources=()), Diagnosis(findings=found, skipped=(), quiet=()))
    assert counted["problem_count"] == counted["finding_count"] == IN_FULL + 1


def test_the_same_on_many_nights_is_one_finding_with_its_runs() -> None:
    """A figure that is wrong every night is told once; another kind of run keeps its own."""
    nights = [
        run(f"n{day}", ranks=8, label=f"8 ranks, 2025-05-{day:02d}", settings={"mfu": 1.2 + day / 100})
        for day in range(1, 21)
    ]
    other = run("four", ranks=4, label="4 ranks, 2025-05-01", settings={"mfu": 1.3})
    found = check(IMPOSSIBLE, evidence(*nights, other))
    assert isinstance(found, tuple)
    assert len(found) == 2
    told = next(f for f in found if "8 ranks" in (f.subject or ""))
    assert told.evidence[-1].startswith("the same on 19 other runs: toy: 8 ranks, 2025-05-")
    assert set(told.wrong_runs) == {f"n{day}" for day in range(1, 21)}

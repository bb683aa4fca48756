from __future__ import annotations

from stepscope.diagnose.outcome import IN_FULL, folded
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

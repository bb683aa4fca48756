"""What holds of every diagnosis, whatever the rules say: stakes, and the order of causes and symptoms."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rule import Rule
from stepscope.records.finding import Finding
from stepscope.results.evidence import Evidence, Source

NAMES = ("a", "b", "c", "d", "e")

findings = st.builds(
    Finding,
    rule=st.sampled_from(NAMES),
    severity=st.sampled_from(("problem", "warning", "info")),
    title=st.just("-"),
    evidence=st.just(("-",)),
    stake_fraction=st.none() | st.floats(0, 1),
    confidence=st.just("measured"),
    job=st.sampled_from(("x", "y")),
    priority=st.sampled_from(("performance", "performance", "wrong")),
)
explained = st.fixed_dictionaries({name: st.lists(st.sampled_from(NAMES), max_size=3, unique=True) for name in NAMES})


def rules_of(found: list[Finding], causes: dict[str, list[str]]) -> list[Rule]:
    rules = []
    for name in NAMES:
        mine = [f for f in found if f.rule == name]
        if mine:
            symptoms = [each for each in NAMES if name in causes[each] and name < each]
            within = tuple(symptoms)
            rules.append(
                Rule(
                    name=name, symptom="-", protocol=1, claims=("idle",), within=within, look=lambda _, mine=mine: mine
                )
            )
    return rules


@given(st.lists(findings, max_size=12), explained)
def test_stakes_of_a_job_sum_to_at_most_its_step_and_no_symptom_leads(
    found: list[Finding], causes: dict[str, list[str]]
) -> None:
    rules = rules_of(found, causes)
    told = diagnose(Evidence(sources=(Source(path=Path("x"), kind="trace"),)), rules=rules).findings
    sums: dict[str | None, float] = defaultdict(float)
    largest = {(f.rule, f.job): 0.0 for f in found}
    for finding in found:
        largest[finding.rule, finding.job] = max(largest[finding.rule, finding.job], finding.stake_fraction or 0.0)
    for finding in told:
        sums[finding.job] += finding.stake_fraction or 0.0
        assert 0 <= (finding.stake_fraction or 0.0) <= largest[finding.rule, finding.job] + 1e-9
    assert all(total <= 1 + 1e-9 for total in sums.values())
    for place, symptom in enumerate(told):
        later = [f for f in told[place + 1 :] if f.job == symptom.job and f.priority == symptom.priority]
        assert not any(f.rule in causes[symptom.rule] and f.rule < symptom.rule and f.severity != "info" for f in later)


@given(st.lists(findings, max_size=8))
def test_every_finding_is_told_or_said_to_be_explained(found: list[Finding]) -> None:
    rules = rules_of(found, {name: list(NAMES) for name in NAMES})
    said = diagnose(Evidence(sources=()), rules=rules)
    assert {f.rule for f in found} == {f.rule for f in said.findings} | {q.rule for q in said.quiet}

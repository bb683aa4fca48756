from __future__ import annotations

from dataclasses import replace

import pytest
from tests.bench_evidence import bench, made
from tests.evidence import epochs, evidence, run, step

from stepscope.diagnose.engine import diagnose
from stepscope.diagnose.rule import Rule
from stepscope.diagnose.rules.communication_bound import RULE as COMMUNICATION
from stepscope.diagnose.rules.noisy_measurement import RULE
from stepscope.records.finding import Finding, Severity
from stepscope.records.nouns import Measured
from stepscope.results.evidence import Evidence

DRIFT = "step times drifted: the second half is +8.0% against the first"


def test_few_wide_and_drifting_runs_are_listed_worst_first() -> None:
    (found,) = RULE.check(
        evidence(
            run("few", step_ns=step(10, n=4)),
            run("wide", step_ns=step(10, spread=0.12)),
            run("drifts", step_ns=step(10), notes=(DRIFT,)),
            run("fine", step_ns=step(10)),
        )
    )
    assert found.title == "3 of 4 runs are too short or too noisy for conclusions"
    assert found.evidence[0] == "toy: wide on 1 ranks: interval ±12%"
    assert "toy: few on 1 ranks: 4 steps timed, 10 are needed" in found.evidence
    assert any(line.endswith(DRIFT) for line in found.evidence)


def test_cells_of_bench_get_the_command_that_measures_them_again() -> None:
    (found,) = RULE.check(bench(made("a", steps=4)))
    assert found.advice[0].command is not None
    assert found.advice[0].command.endswith("--set measure.budget_s=120 --set measure.rounds=3")


@pytest.mark.parametrize(("late_ms", "fires"), [(0.0, False), (10.0, True)])
def test_a_note_of_drift_counts_where_the_halves_of_the_steps_differ(late_ms: float, fires: bool) -> None:
    """bench notes a slow start, too; the first steps of many move no median."""

    def own(rank: int, step: int, phases: dict[str, float]) -> None:  # noqa: ARG001
        phases["forward"] += late_ms if step >= 20 else 30.0 * (step < 5)

    cell = made("a", own=own, known={"notes": (DRIFT,)})
    outcome = RULE.check(bench(cell))
    said = outcome[0].evidence if isinstance(outcome, tuple) else ()
    assert any(DRIFT in line for line in said) is fires
    if fires:  # 10 ms more in the second half
        (doubt,) = outcome[0].casts_doubt.values()
        assert doubt.reach == pytest.approx(1e7 / (cell.run.step_ns.value - 5e6), rel=0.1)


@pytest.mark.parametrize(
    ("time", "doubted"),
    [
        (step(132, spread=0.4), True),
        (step(132, spread=0.12), False),
        (step(132), False),
        (Measured(value=1.3e8, n=4), True),
    ],
)
def test_noise_comes_before_the_findings_that_it_may_explain(time: Measured, doubted: bool) -> None:
    """A quarter of the step is exposed communication: less than an interval of 40%, more than one of 12%."""
    shaky = made("a", comm_ms=32, known={"step_ns": time})
    told = diagnose(bench(shaky), rules=(RULE, COMMUNICATION)).findings
    bound = next(f for f in told if f.rule == "communication-bound")
    assert bound.stake_fraction is not None
    assert bool(bound.doubts) is doubted
    assert [f.rule for f in told].index("communication-bound") == (1 if doubted else 0)


@pytest.mark.parametrize(("severity", "first"), [("warning", "noisy-measurement"), ("info", "other")])
def test_noise_comes_first_for_a_problem_or_warning_only(severity: Severity, first: str) -> None:
    def look(_: Evidence) -> tuple[Finding, ...]:
        steady = Finding(
            severity="warning", title="t", evidence=("e",), stake_fraction=0.5, confidence="c", runs=("b",)
        )
        return steady, replace(steady, severity=severity, stake_fraction=0.01, runs=("a",))

    cells = (made("a", known={"step_ns": step(132, spread=0.4)}), made("b", precision="bf16"))
    told = diagnose(
        bench(*cells), rules=(RULE, Rule(name="other", symptom="s", needs=("cells",), look=look, protocol=4))
    )
    assert told.findings[0].rule == first
    assert [bool(f.doubts) for f in told.findings if f.runs == ("a",) and f.rule == "other"] == [True]


def test_noise_of_one_run_says_nothing_of_another() -> None:
    cells = (made("a", comm_ms=32), made("b", precision="bf16", steps=4))
    told = diagnose(bench(*cells), rules=(RULE, COMMUNICATION)).findings
    assert [(f.rule, f.doubts) for f in told] == [("communication-bound", ()), ("noisy-measurement", ())]


def test_what_does_not_rest_on_times_is_not_in_doubt() -> None:
    wrong = run("a", step_ns=step(10, spread=0.5), epochs=epochs(seconds=[1.0], accuracy=[78.0]))
    told = [f for f in diagnose(evidence(wrong)).findings if f.severity != "info"]
    assert [(f.rule, f.doubts) for f in told] == [("impossible-figures", ()), ("noisy-measurement", ())]

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from tests.bench_evidence import bench, made
from tests.evidence import epochs, evidence, rate, run
from tests.trace_evidence import by_hand, kernels

from stepscope.diagnose.engine import all_rules, believable, diagnose
from stepscope.diagnose.narrator import all_clear, remainder, shown
from stepscope.diagnose.rule import Rule
from stepscope.records.finding import Diagnosis, Finding, Priority, Quiet, Skipped
from stepscope.records.training import TrainingRun
from stepscope.results.evidence import Evidence, TraceEvidence
from stepscope.results.scaling import NOT_EQUIVALENT, scaling_rows


def rule(name: str, *, stake: float | None, priority: Priority, severity: str = "warning") -> Rule:
    def look(_: Evidence) -> Finding:
        return Finding(
            severity=severity,  # type: ignore[arg-type]
            title=name,
            evidence=("1",),
            stake_fraction=stake,
            confidence="measured",
            priority=priority,
        )

    return Rule(name=name, symptom=name, look=look, protocol=1)


@pytest.mark.parametrize(("at_stake", "shown"), [(0.3, ["cause"]), (0.15, ["cause"]), (0.1, ["cause", "symptom"])])
def test_a_symptom_is_not_told_again_where_its_cause_has_as_much_at_stake(at_stake: float, shown: list[str]) -> None:
    symptom = replace(rule("symptom", stake=0.3, priority="performance"), claims=("idle",), whole=True)
    cause = replace(rule("cause", stake=at_stake, priority="performance"), claims=("idle",))
    said = diagnose(evidence(), rules=(symptom, cause))
    assert [f.rule for f in said.findings] == shown
    assert [q.rule for q in said.quiet] == [name for name in ("symptom",) if name not in shown]


def test_time_that_a_finding_wants_is_not_praised() -> None:
    news = rule("praise", stake=None, priority="performance", severity="info")
    praise = replace(news, claims=("computation",), whole=True)
    for part, told in (("computation", ["cause"]), ("step", ["cause"]), ("idle", ["cause", "praise"])):
        cause = replace(rule("cause", stake=0.1, priority="performance"), claims=(part,))
        said = diagnose(evidence(), rules=(praise, cause))
        assert [f.rule for f in said.findings] == told


def test_two_rules_on_one_part_tell_it_once() -> None:
    """A second rule on the optimizer's time needs no name of another: the larger finding is told."""
    rules = [
        replace(rule(name, stake=stake, priority="performance"), claims=(part,), whole=True)
        for name, stake, part in zip("abc", (0.5, 0.52, 0.52), ("computation", "computation", "step"), strict=True)
    ]
    said = diagnose(evidence(), rules=rules)
    assert [f.rule for f in said.findings] == ["b"]


def test_a_rule_loads_only_where_its_evidence_is() -> None:
    script = (
        "from pathlib import Path; import sys\n"
        "from stepscope.diagnose.engine import diagnose\n"
        "from stepscope.results.evidence import Evidence\n"
        "said = diagnose(Evidence(sources=()))\n"
        "assert len(said.skipped) > 60\n"
        "print(*[name for name in sys.modules if name.startswith('stepscope.diagnose.rules.')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert not done.stdout.split()


def _cell_with_a_trace(*, optimizer_ms: float) -> Evidence:
    """Its trace computes 90% of the time, 52% of the time in kernels that move memory."""
    work, moves = ("ampere_sgemm", 380.0), ("void at::native::vectorized_elementwise_kernel<4>", 520.0)
    summary = by_hand(*kernels(work, moves, gap_us=100), device="NVIDIA A100-SXM4-80GB").traces[0].summary
    cell = made("c", phases={"forward": 20.0, "backward_compute": 20.0, "optimizer": optimizer_ms})
    return bench(cell, traces=(TraceEvidence(name="c", summary=summary, cell_id="c"),))


@pytest.mark.parametrize(
    ("optimizer_ms", "shown"),
    [(60.0, ["optimizer-heavy"]), (5.0, ["memory-bandwidth-bound"])],
)
def test_one_part_of_the_time_leads_one_finding(optimizer_ms: float, shown: list[str]) -> None:
    """Its update, its kernels that move memory, and its computation: half of the time, once."""
    rules = [r for r in all_rules() if r.name in ("optimizer-heavy", "memory-bandwidth-bound", "compute-bound")]
    said = diagnose(_cell_with_a_trace(optimizer_ms=optimizer_ms), rules=rules)
    assert [f.rule for f in said.findings] == shown


def accurate(run_id: str, ranks: int, best: float, speed: float) -> TrainingRun:
    timed = epochs(seconds=[12.0 / speed] * 3, accuracy=[best - 0.2, best - 0.1, best])
    return run(run_id, ranks=ranks, dataset="imdb", epochs=timed)


def test_a_speed_up_with_lower_accuracy_is_rated_nowhere() -> None:
    """3.8x on 4 ranks, 11 points less accuracy: other work, not good scaling."""
    found = evidence(accurate("a", 1, 0.90, 1.0), accurate("b", 4, 0.79, 3.8))
    assert [row.rating for row in found.scaling] == [None, NOT_EQUIVALENT]
    said = diagnose(found)
    assert said.findings[0].rule == "quality-lost"
    assert "accuracy is 11.0 points lower" in said.findings[0].title
    assert "good-scaling" not in {f.rule for f in said.findings}


def test_a_bad_baseline_is_rated_by_nobody_and_comes_first() -> None:
    """n2 is 3x on 2 ranks: its baseline is slow, so that the 3.6x of n4 is no good scaling."""
    runs = [
        run("a", samples_per_s=rate(100)),
        *(run(f"n{n}", ranks=n, samples_per_s=rate(s)) for n, s in ((2, 300), (4, 360))),
    ]
    rows = scaling_rows(runs)
    assert [row.rating for row in rows] == [None, None, None]
    said = diagnose(evidence(*runs))
    assert said.findings[0].rule == "impossible-figures"
    assert not {"good-scaling", "fastest-strategy"} & {f.rule for f in said.findings}
    reason = next(s.reason for s in said.skipped if s.rule == "good-scaling")
    assert reason == "another finding says that these runs are wrong or doubtful"


def test_good_news_is_not_asked_about_runs_that_are_wrong() -> None:
    seen: list[Evidence] = []

    def praise(evidence: Evidence) -> Skipped:
        seen.append(evidence)
        return Skipped(reason="-")

    both = evidence(run("a", epochs=epochs(seconds=[1.0], accuracy=[78.0])), run("b"))
    news = Rule(name="news", symptom="-", look=praise, protocol=1, good_news=True)
    diagnose(both, rules=(news, next(r for r in all_rules() if r.name == "impossible-figures")))
    assert [r.run_id for r in seen[0].runs] == ["b"]
    assert believable(both, ()) is both


def test_all_clear_only_where_rules_looked_at_everything() -> None:
    """Never "nothing stands out" of what was not read, or where every rule lacked data."""
    skipped = (Skipped(rule="a", reason="no trace was given"),)
    looked = (Quiet(rule="b", looked_at="2%"),)
    nothing = Diagnosis(findings=(), skipped=skipped, quiet=())
    assert all_clear(nothing, complete=True) == "nothing was checked: 1 rule skipped for lack of data"
    some = Diagnosis(findings=(), skipped=skipped, quiet=looked)
    assert all_clear(some, complete=True) == "nothing stands out: 1 rule found no problem"
    assert "nothing stands out" not in (all_clear(some, complete=True, judged=False) or "")
    assert "stands out" not in str(all_clear(some, complete=False))
    problem = diagnose(evidence(), rules=(rule("half", stake=0.5, priority="performance"),))
    assert all_clear(problem, complete=True) is None


def test_what_the_comparison_says_is_shown_however_far_down() -> None:
    rules = [rule(f"r{n}", stake=0.5, priority="performance") for n in range(5)]
    answer = rule("fastest-strategy", stake=None, priority="performance", severity="info")
    said = diagnose(evidence(), rules=(*rules, answer))
    assert [f.rule for f in shown(said)] == ["r0", "r1", "r2", "r3", "fastest-strategy"]
    assert remainder(said) == "1 more finding; "

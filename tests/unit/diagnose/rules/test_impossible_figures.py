from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from tests.evidence import epochs, evidence, rate, run, step

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules.impossible_figures import RULE
from stepscope.records.finding import Quiet, Skipped
from stepscope.records.nouns import Measured
from stepscope.results.evidence import Evidence, TraceEvidence


def pair(speedup: float, **base: Any) -> Any:
    return evidence(run("a", samples_per_s=rate(100), **base), run("b", ranks=2, samples_per_s=rate(100 * speedup)))


def test_more_than_the_ranks_can_give_fires_and_names_the_usual_errors() -> None:
    (found,) = RULE.check(pair(3.0))
    assert found.title == "3.00x on 2 ranks is super-linear: 150% efficiency"
    assert "usual errors" in found.evidence[1]
    assert found.advice[0].text.startswith("measure a on 1 ranks again")


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ({"step_ns": step(10, n=3)}, "the baseline has only 3 steps"),
        ({"precision": "fp32"}, "different precision: None against fp32"),
        ({"notes": ("step times drifted",)}, "the baseline's own note: step times"),
    ],
)
def test_what_the_runs_show_of_the_cause_is_named(base: dict[str, Any], said: str) -> None:
    (found,) = RULE.check(pair(3.0, **base))
    assert any(said in line for line in found.evidence)
    shown = any("usual errors" in line for line in found.evidence)
    assert shown is ("notes" in base), "a note is no cause yet"


def test_runs_of_one_baseline_are_one_finding() -> None:
    runs = [run(f"n{n}", ranks=n, samples_per_s=rate(120.0 * n)) for n in (2, 4, 8)]
    (found,) = RULE.check(evidence(run("a", samples_per_s=rate(100)), *runs))
    assert found.title.startswith("2.40x on 2 ranks")
    (also,) = (line for line in found.evidence if line.startswith("also "))
    assert [also.count(text) for text in ("n4", "4.80x", "n8", "9.60x")] == [1, 1, 1, 1]


def test_the_worst_rank_of_a_trace_counts() -> None:
    def used(rank: int, mfu: float | None) -> SimpleNamespace:
        return SimpleNamespace(
            budget=1, utilisation=SimpleNamespace(rank=rank, mfu=mfu, formula="FLOP / (step x peak)")
        )

    def traced(*ranks: SimpleNamespace) -> Evidence:
        summary: Any = SimpleNamespace(ranks=(*ranks, SimpleNamespace(budget=None, utilisation=None)))
        return evidence(traces=(TraceEvidence(name="job", summary=summary),))

    (found,) = RULE.check(traced(used(0, 0.9), used(1, 1.3), used(2, None)))
    assert (found.title, found.subject) == ("MFU of 130% is impossible", "job, rank 1")
    assert isinstance(RULE.check(traced(used(0, 1.0))), Quiet)


@pytest.mark.parametrize(
    ("samples_per_s", "known", "meaning"),
    [
        (10.0, {}, "these are steps/s, not samples/s"),
        (160.0, {"ranks": 4}, "one rank's samples, not those of all ranks"),
        (2560.0, {"ranks": 4}, "multiplied by the ranks twice"),
        (1280.0, {"accumulation": 2}, "the step's time is one micro-step's"),
        (2000.0, {}, "they do not cover the same steps"),
    ],
)
def test_throughput_that_contradicts_its_step(samples_per_s: float, known: dict[str, Any], meaning: str) -> None:
    """64 samples in 100 ms are 640/s."""
    one = run("a", **{"ranks": 1, **known}, global_batch=64, step_ns=step(100), samples_per_s=rate(samples_per_s))
    (found,) = RULE.check(evidence(one))
    assert meaning in found.evidence[0]
    assert "is 640" in found.title


def test_mfu_above_one_fires_in_fractions_and_in_per_cent() -> None:
    for value, percent in ((1.86, "186%"), (186, "186%")):
        (found,) = RULE.check(evidence(run("a", settings={"mfu": value})))
        assert found.title == f"MFU of {percent} is impossible"
    for value in (0.45, 1.0, 45.5):
        assert isinstance(RULE.check(evidence(run("a", settings={"mfu": value}))), Quiet)


def test_a_step_cannot_hold_more_communication_than_time() -> None:
    (found,) = RULE.check(evidence(run("a", ranks=4, step_ns=step(10), exposed_comm_ns=step(30))))
    assert "30.0 ms of exposed communication in a step of 10.0 ms" in found.title
    assert isinstance(RULE.check(evidence(run("a", step_ns=step(10), exposed_comm_ns=step(10)))), Quiet)


def test_accuracies_and_times_that_cannot_be() -> None:
    (found,) = RULE.check(evidence(run("a", epochs=epochs(seconds=[1.0, 1.0], accuracy=[78.3, 79.0]))))
    assert "per cent written as a fraction" in found.evidence[1]
    (found,) = RULE.check(evidence(run("a", epochs=epochs(seconds=[0.0, 1.0]))))
    assert found.title == "1 epoch took no time"
    (found,) = RULE.check(evidence(run("a", step_ns=Measured(value=0.0))))
    assert found.title == "a step took no time"


def test_nothing_at_all_is_skipped() -> None:
    assert isinstance(check(RULE, evidence()), Skipped)


def test_it_names_the_runs_that_nothing_else_may_rate() -> None:
    (found,) = RULE.check(pair(3.0))
    assert (found.priority, found.wrong_runs) == ("wrong", ("a",))
    (found,) = RULE.check(evidence(run("x", epochs=epochs(seconds=[1.0], accuracy=[78.3]))))
    assert (found.confidence, found.wrong_runs) == ("certain: an accuracy is between 0 and 1", ("x",))


def test_an_interval_that_reaches_linear_establishes_no_super_linear_gain() -> None:
    """A noisy baseline: 3.9x on 2 ranks may be linear."""

    def outcome(spread: float) -> object:
        base = run("a", samples_per_s=rate(100, spread=spread))
        return RULE.check(evidence(base, run("b", ranks=2, samples_per_s=rate(390, spread=spread))))

    noisy = outcome(0.5)
    assert isinstance(noisy, Quiet)
    assert "highest efficiency 195%" in noisy.looked_at
    assert "not established: 3.90x (95% interval" in noisy.looked_at
    assert isinstance(outcome(0.05), tuple)

from __future__ import annotations

from tests.evidence import epochs, evidence, rate, run

from stepscope.diagnose.engine import check
from stepscope.diagnose.rules.good_scaling import RULE
from stepscope.records.finding import Quiet, Skipped

BASE = run("a", samples_per_s=rate(100))


def test_good_news_names_rating_and_efficiency_of_the_most_ranks() -> None:
    (found,) = RULE.check(
        evidence(BASE, run("b", ranks=2, samples_per_s=rate(195)), run("c", ranks=4, samples_per_s=rate(349)))
    )
    assert found.severity == "info"
    assert found.title == "good scaling: 3.49x on 4 ranks, 87.2% efficiency"
    assert "also b on 2 ranks: 1.95x, 97.5%" in found.evidence
    assert "strong scaling" in found.evidence[0]


def test_a_baseline_is_never_praised() -> None:
    assert isinstance(check(RULE, evidence(BASE)), Skipped)
    own = run("a", samples_per_s=rate(100), baseline_id="a")
    outcome = check(RULE, evidence(own, run("b", ranks=2, samples_per_s=rate(90), baseline_id="a")))
    assert isinstance(outcome, Quiet)


def test_slower_to_the_accuracy_is_said_beside_it() -> None:
    (found,) = RULE.check(
        evidence(
            run("a", dataset="d", epochs=epochs(seconds=[10.0] * 4, accuracy=[0.8, 0.8, 0.8, 0.8])),
            run("b", ranks=2, dataset="d", epochs=epochs(seconds=[5.0] * 4, accuracy=[0.5, 0.6, 0.7, 0.8])),
        )
    )
    assert "this is per epoch; to validation accuracy 0.80 the speed-up is 0.50x" in found.evidence

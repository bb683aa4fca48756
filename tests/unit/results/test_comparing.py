"""A/B: who pairs with whom, when there is a test, and when the answer is no difference."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.evidence import MS, epochs, evidence, rate, run, step
from tests.trace_evidence import generated

from stepscope.records.comparison import ComparedFigure, Comparison
from stepscope.results.comparing import Side, compare


def side(name: str, *rounds_of_steps: float, **known: object) -> Side:
    """One cell measured in rounds; each number is a round's median step in ms."""
    made = [
        evidence(run("cell", ranks=2, step_ns=step(ms), samples_per_s=rate(1e6 / ms), **known))
        for ms in rounds_of_steps
    ]
    return Side(name=name, rounds=tuple(made))


def of(comparison: Comparison, metric: str) -> ComparedFigure:
    return next(figure for figure in comparison.figures if figure.metric == metric)


def test_rounds_that_are_clearly_apart_are_better_or_worse_by_the_metrics_own_direction() -> None:
    slow = side("old", 10.0, 10.1, 9.9, 10.05, 10.0, 9.95)
    fast = side("new", 8.0, 8.1, 7.9, 8.05, 8.0, 7.95)
    found = compare([slow, fast])
    assert of(found, "step_ns").verdict == "better"
    assert of(found, "samples_per_s").verdict == "better"
    assert of(found, "step_ns").ratio == pytest.approx(0.8, abs=0.01)
    assert of(compare([fast, slow]), "step_ns").verdict == "worse"


def test_equal_code_with_noise_is_no_significant_difference() -> None:
    a = side("a", 10.0, 10.6, 9.5, 10.2, 9.8, 10.4)
    b = side("b", 10.1, 9.6, 10.5, 9.9, 10.3, 9.7)
    figure = of(compare([a, b]), "step_ns")
    assert figure.verdict == "no significant difference"
    assert figure.p_value is not None
    assert figure.p_value > 0.05
    assert figure.low < 1 < figure.high  # type: ignore[operator]


def test_three_rounds_are_refused_and_four_are_tested() -> None:
    three = compare([side("a", 10, 10, 10), side("b", 5, 5, 5)])
    assert of(three, "step_ns").p_value is None
    assert "4" in (of(three, "step_ns").untested or "")
    assert of(three, "step_ns").verdict == "not tested"
    four = compare([side("a", 10, 11, 10, 11), side("b", 5, 6, 5, 6)])
    assert of(four, "step_ns").p_value == pytest.approx(2 / 70, abs=0.01)
    assert of(four, "step_ns").verdict == "better"


def test_epochs_of_imported_runs_are_replicates_without_the_first() -> None:
    a = evidence(run("exp1", ranks=1, epochs=epochs(seconds=[50, 10.0, 10.1, 9.9, 10.0, 10.2])))
    b = evidence(run("exp2", ranks=4, epochs=epochs(seconds=[50, 3.0, 3.1, 2.9, 3.0, 3.2])))
    figure = of(compare([Side(name="1", rounds=(a,)), Side(name="4", rounds=(b,))]), "epoch_ns")
    assert figure.ratio == pytest.approx(0.3, abs=0.01)
    assert figure.replicate == "epoch"
    assert figure.verdict == "better"


def test_without_replicates_intervals_that_do_not_overlap_decide() -> None:
    def only(ms: float) -> Side:
        made = run("cell", exposed_comm_ns=step(ms, spread=0.05))
        return Side(name=str(ms), rounds=(evidence(made),))

    assert of(compare([only(10), only(20)]), "exposed_comm_ns").verdict == "worse"
    assert of(compare([only(10), only(10.5)]), "exposed_comm_ns").verdict == "no significant difference"


def test_cells_pair_by_id_and_what_has_no_partner_is_named() -> None:
    a = evidence(run("x", step_ns=step(10)), run("y", label="only here", step_ns=step(5)))
    b = evidence(run("x", step_ns=step(11)), run("z", label="only there", step_ns=step(5)))
    found = compare([Side(name="A", rounds=(a,)), Side(name="B", rounds=(b,))])
    assert {figure.what for figure in found.figures} == {"toy, x on 1 ranks"}
    assert found.unmatched == ("A only: toy, only here", "B only: toy, only there")


def test_cells_whose_settings_differ_pair_by_what_they_train() -> None:
    def made(lr: float) -> tuple[object, ...]:
        return tuple(
            run(f"{n}-{lr}", ranks=n, label=f"lr={lr} on {n}", step_ns=step(n), settings={"lr": lr}) for n in (1, 2)
        )

    a, b = evidence(*made(0.1)), evidence(*made(0.2))  # type: ignore[arg-type]
    found = compare([Side(name="A", rounds=(a,)), Side(name="B", rounds=(b,))])
    assert len([f for f in found.figures if f.metric == "step_ns"]) == 2
    assert [(d.key, d.values) for d in found.differences] == [("lr", ("0.1", "0.2"))]


def test_three_runs_are_all_compared_with_the_first() -> None:
    sides = [
        Side(name=n, rounds=(evidence(run("c", step_ns=step(ms))),)) for n, ms in zip("abc", (8, 4, 2), strict=True)
    ]
    ratios = {f.side: f.ratio for f in compare(sides).figures}
    assert ratios == {"b": 0.5, "c": 0.25}


def test_steps_of_traced_jobs_are_compared_and_few_of_them_are_not_tested(tmp_path: Path) -> None:
    sides = [
        Side(name=name, rounds=(generated(tmp_path / name, steps=steps),))
        for name, steps in (("before", 3), ("after", 12), ("again", 12))
    ]
    found = compare(sides)
    steps = [f for f in found.figures if f.metric == "trace_step_ns"]
    assert [f.side for f in steps] == ["after", "again"]
    assert steps[0].untested is not None
    assert steps[0].first.n == 3
    tested = next(f for f in compare(sides[1:]).figures if f.metric == "trace_step_ns")
    assert tested.verdict == "no significant difference"


def test_failed_runs_are_not_compared() -> None:
    a = evidence(run("c", step_ns=step(5)))
    b = evidence(run("c", step_ns=None, status="oom"))
    assert compare([Side(name="A", rounds=(a,)), Side(name="B", rounds=(b,))]).figures == ()


def test_a_figure_of_zero_gives_no_ratio() -> None:
    a = evidence(run("c", train_loss=0.0, step_ns=step(2)))
    b = evidence(run("c", train_loss=0.1, step_ns=step(2)))
    found = compare([Side(name="A", rounds=(a,)), Side(name="B", rounds=(b,))])
    assert {f.metric for f in found.figures} == {"step_ns"}
    assert of(found, "step_ns").first.value == 2 * MS

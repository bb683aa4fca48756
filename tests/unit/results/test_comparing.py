"""A/B: who pairs with whom, when there is a test, and when the answer is no difference."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.comm_rows import collective
from tests.evidence import MS, epochs, evidence, rate, run, step
from tests.trace_evidence import generated, traced

from stepscope.records.comparison import ComparedFigure, Comparison, Replicates
from stepscope.records.trace_summary import TraceSummary
from stepscope.records.training import TrainingRun
from stepscope.report.documents import compare_changes
from stepscope.report.frame import frame_of
from stepscope.report.views.comparison import comparison_table, metric_name
from stepscope.results.comparing import Side, compare, figure, lacking
from stepscope.traces.diff import diff_profiles
from stepscope.traces.job import analyse_job
from stepscope.traces.sections import Wanted


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


def test_a_narrow_interval_of_a_large_change_is_written_and_a_wide_one_is_named() -> None:
    def interval(old: tuple[float, ...], new: tuple[float, ...]) -> str:
        rows = frame_of(comparison_table(compare([side("a", *old), side("b", *new)])))
        return str(next(row["interval"] for row in rows if row["metric"] == "step_ns"))

    assert re.fullmatch(
        r"-9\d\.\d% to -8\d\.\d%", interval((100, 101, 99, 100, 103, 97), (10, 10.2, 9.8, 10, 10.4, 9.6))
    )
    assert "%" not in interval((1, 40, 2, 60, 3, 1), (40, 1, 60, 2, 1, 3))


def test_three_rounds_are_refused_four_are_tested_and_noise_is_no_difference() -> None:
    a = side("a", 10.0, 10.6, 9.5, 10.2, 9.8, 10.4)
    b = side("b", 10.1, 9.6, 10.5, 9.9, 10.3, 9.7)
    figure = of(compare([a, b]), "step_ns")
    assert figure.verdict == "no significant difference"
    assert figure.p_value > 0.05
    assert figure.low < 1 < figure.high  # type: ignore[operator]
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


def test_cells_pair_by_id_or_by_what_they_train_and_what_has_no_partner_is_named() -> None:
    a = evidence(run("x", step_ns=step(10)), run("y", label="only here", step_ns=step(5)))
    b = evidence(run("x", step_ns=step(11)), run("z", label="only there", step_ns=step(5)))
    found = compare([Side(name="A", rounds=(a,)), Side(name="B", rounds=(b,))])
    assert {figure.what for figure in found.figures} == {"toy, x on 1 ranks"}
    assert found.unmatched == ("A only: toy, only here", "B only: toy, only there")

    def made(lr: float) -> tuple[object, ...]:
        return tuple(
            run(f"{n}-{lr}", ranks=n, label=f"lr={lr} on {n}", step_ns=step(n), settings={"lr": lr}) for n in (1, 2)
        )

    a, b = evidence(*made(0.1)), evidence(*made(0.2))  # type: ignore[arg-type]
    found = compare([Side(name="A", rounds=(a,)), Side(name="B", rounds=(b,))])
    assert len([f for f in found.figures if f.metric == "step_ns"]) == 2
    assert [(d.key, d.values) for d in found.differences] == [("lr", ("0.1", "0.2"))]


def test_all_runs_are_compared_with_the_first_and_what_one_side_alone_tells_is_unknown() -> None:
    sides = [
        Side(name=n, rounds=(evidence(run("c", step_ns=step(ms))),)) for n, ms in zip("abc", (8, 4, 2), strict=True)
    ]
    ratios = {f.side: f.ratio for f in compare(sides).figures}
    assert ratios == {"b": 0.5, "c": 0.25}
    a = evidence(run("a", precision="bf16", step_ns=step(2)))
    b = evidence(run("b", step_ns=step(2)))
    found = compare([Side(name="A", rounds=(a,)), Side(name="B", rounds=(b,))])
    assert found.differences == ()
    assert ("precision", ("bf16", None)) in {(d.key, d.values) for d in found.unknown}


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


def test_failed_runs_and_figures_of_zero_are_not_compared() -> None:
    a = evidence(run("c", step_ns=step(5)))
    b = evidence(run("c", step_ns=None, status="oom"))
    assert compare([Side(name="A", rounds=(a,)), Side(name="B", rounds=(b,))]).figures == ()
    a = evidence(run("c", train_loss=0.0, step_ns=step(2)))
    b = evidence(run("c", train_loss=0.1, step_ns=step(2)))
    found = compare([Side(name="A", rounds=(a,)), Side(name="B", rounds=(b,))])
    assert {f.metric for f in found.figures} == {"step_ns"}
    assert of(found, "step_ns").first.value == 2 * MS


def on_devices(folder: Path, device: str, ranks: int) -> Side:
    """A traced job of ``ranks`` ranks, each on a ``device``."""
    job = generated(folder, world=ranks).traces[0].summary
    named = tuple(replace(p, facts=replace(p.facts, device_name=device)) for p in job.ranks)
    return Side(name=folder.name, rounds=(traced(replace(job, ranks=named)),))


def test_eight_a100_against_two_v100_differ_and_what_no_trace_tells_is_unknown(tmp_path: Path) -> None:
    found = compare([on_devices(tmp_path / "a", "NVIDIA A100", 8), on_devices(tmp_path / "b", "Tesla V100", 2)])
    told = {d.key: d.values for d in found.differences}
    assert told["gpus"] == ("8 x NVIDIA A100", "2 x Tesla V100")
    assert told["world_size"] == ("8", "2")
    assert told["ranks traced"] == ("0-7", "0-1")
    assert {"torch", "cuda", "nccl", "driver"} <= {d.key for d in found.unknown}
    assert "backend" in {d.key for d in found.same}
    alike = compare([on_devices(tmp_path / "c", "NVIDIA A100", 2), on_devices(tmp_path / "d", "NVIDIA A100", 2)])
    assert alike.differences == ()
    assert {"gpus", "world_size", "ranks traced"} <= {d.key for d in alike.same}


def test_figures_beside_a_tested_ratio_are_of_the_same_statistic() -> None:
    # The first round is an outlier on one side: its own figures, 79 against 43, contradict what six rounds say.
    a = side("a", 12.6, 23.0, 23.4, 23.1, 22.9, 23.2)
    b = side("b", 23.5, 23.9, 23.8, 24.1, 23.7, 24.0)
    for each in compare([a, b]).figures:
        assert each.ratio == pytest.approx(each.second.value / each.first.value)
        assert each.first.n == each.second.n == 6
    assert of(compare([a, b]), "step_ns").first.value == pytest.approx(23.05 * MS)


def traced_job(folder: Path, steps: int, forward_ns: int) -> TraceSummary:
    evidence_ = generated(folder, world=1, steps=steps, forward_ns=forward_ns)
    return evidence_.traces[0].summary


def test_a_comparison_of_traces_and_a_diff_of_them_say_the_same(tmp_path: Path) -> None:
    slow, fast = (traced_job(tmp_path / name, 6, ns) for name, ns in (("slow", 300_000), ("fast", 100_000)))
    compared = compare([Side(name=n, rounds=(traced(s),)) for n, s in (("slow", slow), ("fast", fast))])
    figure = of(compared, "trace_step_ns")
    profiles = [
        analyse_job(tmp_path / name / "job", Wanted(sections=frozenset({"profile"}))).ranks[0].profile
        for name in ("slow", "fast")
    ]
    assert profiles[0] is not None
    assert profiles[1] is not None
    diff = diff_profiles(profiles[0], profiles[1])
    assert (figure.verdict, diff.verdict) == ("better", "faster")
    assert (diff.p_value, diff.ratio, diff.ratio_low, diff.ratio_high) == (
        figure.p_value, figure.ratio, figure.low, figure.high,
    )  # fmt: skip
    assert diff.p_value == pytest.approx(2 / 924)


def sweep(**changes: object) -> list[object]:
    """Ring and Tree, as `comm --env NCCL_ALGO=Ring,Tree` measures them: Tree takes half the time."""
    return [
        collective(size, us, env={"NCCL_ALGO": algorithm}, cell_id=algorithm, **changes)  # type: ignore[arg-type]
        for algorithm, factor in (("Ring", 2.0), ("Tree", 1.0))
        for size, us in ((1024, 20 * factor), (1 << 20, 400 * factor))
    ]


def comm_side(name: str, rows: list[object]) -> Side:
    return Side(name=name, rounds=(evidence(comm=tuple(rows)),))


def test_sweeps_over_a_variable_pair_by_its_value_whatever_the_order_of_rows() -> None:
    found = compare([comm_side("a", sweep()), comm_side("b", sweep()[::-1])])
    assert len(found.figures) == 4
    assert {figure.ratio for figure in found.figures} == {1.0}
    assert {figure.what for figure in found.figures} == {
        f"all_reduce on 2 ranks, NCCL_ALGO={algorithm}, {size}"
        for algorithm in ("Ring", "Tree")
        for size in ("1 KiB", "1 MiB")
    }
    assert found.unmatched == ()


@pytest.mark.parametrize(
    "changes",
    [{"device": "cuda"}, {"backend": "nccl"}, {"network": "1gbit:2"}, {"pacing": "back_to_back"}, {"pattern": "bi"},
     {"in_flight": 4, "mode": "async"}],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_everything_that_a_sweep_is_measured_with_keeps_it_apart(changes: dict[str, object]) -> None:
    rows = [collective(1024, 20), collective(1024, 60, cell_id="other", **changes)]
    found = compare([comm_side("a", [*rows]), comm_side("b", rows[::-1])])
    assert [figure.ratio for figure in found.figures] == [1.0, 1.0]


def test_a_sweep_on_another_backend_is_compared_and_one_measured_twice_is_named() -> None:
    a, b = [collective(1024, 60)], [collective(1024, 20, device="cuda", backend="nccl")]
    found = compare([comm_side("a", a), comm_side("b", b)])  # type: ignore[arg-type]
    assert [figure.ratio for figure in found.figures] == [pytest.approx(1 / 3)]
    assert ("backend", ("gloo", "nccl")) in {(d.key, d.values) for d in found.differences}
    a = [collective(1024, 60), collective(1024, 20, cell_id="again")]
    found = compare([comm_side("a", a), comm_side("b", [collective(1024, 20)])])  # type: ignore[arg-type]
    assert found.figures == ()
    assert any("a only: all_reduce on 2 ranks" in text and "more than once" in text for text in found.unmatched)


@pytest.mark.parametrize(
    ("first", "second", "paired", "missing"),
    [
        ((10, 20, 30, 40), (5, 11, 14, 21), True, "test"),  # -53% to -45% round by round, and p 0.34
        ((10.0, 10.8, 9.4, 9.8, 8.6, 9.2), (14.6, 12.5, 10.4, 9.7, 10.1, 11.3), False, "interval"),  # p 0.04
    ],
)
def test_where_interval_and_test_disagree_it_is_not_clear_and_the_missing_one_is_named(
    first: tuple[float, ...], second: tuple[float, ...], paired: bool, missing: str
) -> None:
    found = figure(
        what="w", metric="step_ns", side="b", first=step(1), second=step(1), paired=paired,
        replicates=(Replicates(kind="round", values=first), Replicates(kind="round", values=second)),
    )  # fmt: skip
    assert (found.verdict, lacking(found)) == ("not clear", missing)
    made = Comparison(sides=("a", "b"), differences=(), figures=(found,))
    assert [change.change for change in compare_changes(made)] == [None], "no condition holds on what may be no change"


def test_a_throughput_has_the_unit_of_its_runs_and_two_units_are_not_compared() -> None:
    sides = [
        Side(name=name, rounds=(evidence(run(name, samples_per_s=rate(n), unit=unit, step_ns=step(10))),))
        for name, n, unit in (("a", 100, "tokens"), ("b", 110, "tokens"), ("c", 5, "samples"))
    ]
    tokens = [f for f in compare(sides).figures if f.metric == "samples_per_s"]
    assert [(f.side, f.unit) for f in tokens] == [("b", "tokens")]
    assert metric_name(tokens[0]) == "tokens/s"


def test_scaling_is_of_a_run_on_one_side_and_its_baseline_on_another() -> None:

    def both(source: str) -> tuple[TrainingRun, ...]:
        made = (run(f"r{n}", ranks=n, samples_per_s=rate(90 * n), step_ns=step(10)) for n in (1, 2))
        return tuple(replace(each, source=source) for each in made)

    one, two = both("t.csv:2")
    again = [Side(name=name, rounds=(evidence(*both(f"{name}.csv:2")),)) for name in "ab"]
    assert compare(again).scaling == (), "both sides have both: what one gains from ranks is no comparison"
    (across,) = compare([Side(name="a", rounds=(evidence(one),)), Side(name="b", rounds=(evidence(two),))]).scaling
    assert across.run_ids == ("r2", "r1")


def test_a_planted_fault_is_a_difference_and_not_unknown_where_a_cell_has_none() -> None:
    planted = {"inject": "slow_rank=1:30%"}
    plain = side("A", 10.0, workload="mlp")
    found = compare([plain, side("B", 13.0, workload="mlp", settings=planted)])
    assert [(d.key, d.values) for d in found.differences] == [("inject", ("none", "slow_rank=1:30%"))]
    assert "inject" not in {d.key for d in compare([plain, side("B", 13.0, workload="mlp")]).same}

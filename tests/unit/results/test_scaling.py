"""Rows of scaling from hand-made runs: numbers, baselines, intervals, targets."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.bench_evidence import made
from tests.evidence import epochs, evidence, rate, run

from stepscope.diagnose.engine import diagnose
from stepscope.records.nouns import Measured
from stepscope.records.training import ScalingRow, TrainingRun
from stepscope.results.open import load_evidence
from stepscope.results.scaling import scaling_rows, with_baselines

BASE_SECONDS = [12.0, 10.0, 10.2, 9.8, 10.1, 9.9, 10.0, 10.0]
FAST_SECONDS = [4.0, 2.5, 2.6, 2.4, 2.5, 2.5, 2.6, 2.4]


def rows(*runs: TrainingRun, **options: object) -> dict[str, ScalingRow]:
    return {row.run_id: row for row in scaling_rows(runs, **options)}  # type: ignore[arg-type]


def pair() -> tuple[TrainingRun, TrainingRun]:
    return (
        run("a", ranks=1, dataset="imdb", epochs=epochs(seconds=BASE_SECONDS)),
        run("b", ranks=4, dataset="imdb", epochs=epochs(seconds=FAST_SECONDS)),
    )


def test_the_same_rows_have_one_speed_up_as_cells_and_imported(tmp_path: Path) -> None:
    """METRICS, Scaling: one baseline for both; the strategy's own 1-rank run made 3.00x of what is 2.50x."""
    table = [("single", 1, 10.0), ("ddp", 1, 12.0), ("ddp", 2, 11.0), ("ddp", 4, 4.0), ("zero1", 4, 5.0)]
    measured = [
        made(f"{name}{n}", strategy=name, world_size=n, micro_batch=64 // n, global_batch=64, comm_ms=0.0,
             phases={"forward": ms})
        for name, n, ms in table
    ]  # fmt: skip
    cells = evidence(*with_baselines([cell.run for cell in measured]))
    steps = [cell.run.step_ns.value for cell in measured if cell.run.step_ns is not None]
    lines = [f"{name},{n},{ns / 1e6},64" for (name, n, _), ns in zip(table, steps, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["strategy,gpus,step_time_ms,global_batch", *lines, ""]))
    imported = load_evidence([tmp_path / "t.csv"])
    found = [
        [(row.speedup, row.efficiency, row.baseline_world_size) for row in each.scaling] for each in (cells, imported)
    ]
    assert len(found[0]) == 4, "ddp on 1 rank is measured against nothing"
    for mine, theirs in zip(*found, strict=True):
        assert mine == pytest.approx(theirs)
    assert found[0][2][0] == pytest.approx(steps[0] / steps[3])
    negative = [
        next(f.stake_fraction for f in diagnose(each).findings if f.rule == "negative-scaling")
        for each in (cells, imported)
    ]
    assert negative == [pytest.approx(1 - found[0][1][1])] * 2, "what is at stake is what is lost against that baseline"


def test_without_a_run_on_one_rank_cells_are_measured_against_the_fewest_ranks() -> None:
    cells = [
        made(f"c{n}", strategy="ddp", world_size=n, micro_batch=64 // n, global_batch=64, phases={"forward": 16.0 / n})
        for n in (2, 4, 8)
    ]
    two, four, eight = with_baselines([cell.run for cell in cells])
    assert [each.baseline_id for each in (two, four, eight)] == ["c2", "c2", "c2"]


@pytest.mark.parametrize(
    "known",
    [{"hardware": "H100"}, {"device": "cuda"}, {"group": "other"}, {"unit": "tokens"}, {"global_batch": 64}],
)
def test_what_cannot_be_compared_is_no_baseline(known: dict[str, object]) -> None:
    mine = {"hardware": "A100", "device": "cpu", "unit": "samples", "global_batch": 32}
    base = run("a", samples_per_s=rate(100), **{**mine, **known})
    assert rows(base, run("b", ranks=2, samples_per_s=rate(150), **mine)) == {}


def test_figures_that_cannot_be_have_no_rating_and_zero_is_no_speed_up() -> None:
    found = rows(run("a", samples_per_s=rate(100)), run("b", ranks=2, samples_per_s=rate(300)))["b"]
    assert (found.efficiency, found.rating) == (pytest.approx(1.5), None)
    zero = run("a", dataset="imdb", epochs=epochs(seconds=[0.0, 0.0]))
    assert rows(zero, run("b", ranks=2, dataset="imdb", epochs=epochs(seconds=[1.0, 1.0]))) == {}
    assert rows(run("a", samples_per_s=Measured(value=0.0)), run("b", ranks=2, samples_per_s=rate(1))) == {}


BASE_ACCURACY = [0.70, 0.77, 0.78, 0.783, 0.78]
FAST_ACCURACY = [0.61, 0.70, 0.74, 0.756, 0.768]


def learned() -> tuple[TrainingRun, TrainingRun]:
    return (
        run("a", dataset="imdb", epochs=epochs(seconds=[11, 10, 10, 10, 10], accuracy=BASE_ACCURACY)),
        run("b", ranks=4, dataset="imdb", epochs=epochs(seconds=[4, 3, 3, 3, 3], accuracy=FAST_ACCURACY)),
    )


def test_rows_keep_the_order_of_runs_and_a_file_of_two_writers_has_none() -> None:
    base, fast = learned()
    mixed = run("b", ranks=4, dataset="imdb", epochs=fast.epochs, settings={"duplicate_epochs": (2, 3)})
    assert rows(base, mixed) == {}
    twice = run("b", ranks=4, dataset="imdb", epochs=(*fast.epochs, *fast.epochs))
    found = evidence(base, twice)
    assert found.scaling == found.scaling_budgets == ()
    assert found.remarks == ("no scaling verdict: b holds the epochs of several trainings",)
    assert [row.run_id for row in evidence(*reversed(pair())).scaling] == ["b", "a"]


def test_cells_of_bench_are_compared_by_their_median_steps() -> None:
    cells = [
        made("one", strategy="single", world_size=1, micro_batch=32, global_batch=32, comm_ms=0.0),
        made("two", strategy="ddp", world_size=2, micro_batch=16, global_batch=32, phases={"forward": 10.0}),
    ]
    runs = with_baselines([cell.run for cell in cells])
    one, two = (run.step_ns for run in runs)
    row = scaling_rows(runs)[1]
    assert row.speedup == pytest.approx(one.value / two.value)
    assert (row.basis, row.baseline_id) == ("median step", "one")
    assert row.low is not None, "the samples give an interval"

"""Charts of training runs: what is compared with what, what labels say, what failed, how many there are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests import pages
from tests.described import drawn, values
from tests.evidence import epochs, rate, run, step
from tests.training_records import cell, exact, failed, imported, scaled, study, trace, trained

from stepscope.report.charts import FEW_CHARTS, begin, charts_of, write
from stepscope.report.names import clean, file_part, lines
from stepscope.report.shared.curves import CurvePoint, RunCurve, alike_as_one
from stepscope.report.shared.runs import names, quantity
from stepscope.report.vega import Chart
from stepscope.report.views.bars import UNCLEAR

TRAINING = (
    "precision", "scaling", "accumulation", "comm_share", "loss", "strategies", "throughput", "speedup_efficiency",
    "epoch_time", "accuracy", "memory", "step_budget", "trace_budget", "stragglers", "hardware",
)  # fmt: skip


@pytest.mark.parametrize("key", TRAINING)
def test_one_run_alone_is_not_compared(key: str) -> None:
    lost = (failed("a"), failed("b", ranks=2, strategy="naive"), failed("c", ranks=2, strategy="ddp"))
    for runs in ((trained("one", 20.0),), lost):
        assert drawn(key, runs=runs, scaling=scaled(runs), cells=(), traces=()) == ()


def test_strategies_whose_intervals_overlap_are_not_called_faster() -> None:
    a = trained("a", 10.0, ranks=2, strategy="naive", step_ns=step(10.0, spread=0.1))
    b = trained("b", 9.8, ranks=2, strategy="ddp", step_ns=step(9.8, spread=0.1))
    for ms, label in ((9.8, UNCLEAR), (7.0, "43% faster")):
        (chart,) = drawn("strategies", runs=(a, replace(b, step_ns=step(ms, spread=0.1))))
        assert {value["text"] for value in values(chart, "text")} == {label}
        assert ("Not clear: the intervals overlap." in chart.caption) is (label == UNCLEAR)


def test_repeats_stand_beside_each_other_and_none_is_lost() -> None:
    runs = [trained(f"{s}{n}", 10.0 + n, ranks=2, strategy=s) for s in ("naive", "ddp") for n in range(3)]
    (chart,) = drawn("strategies", runs=tuple(runs))
    assert [bar["y"] for bar in values(chart, "bar")] == [10.0, 10.0, 11.0, 11.0, 12.0, 12.0]


def test_accumulation_compares_throughput_not_steps_of_different_work_in_the_order_of_numbers() -> None:
    (chart,) = drawn("accumulation", runs=study())
    assert chart.spec["encoding"]["y"]["title"] == "throughput (samples/s)"
    assert [(bar["series"], bar["y"]) for bar in values(chart, "bar")] == [("GA 1", 21_333.3), ("GA 4", 25_600.0)]
    assert values(chart, "text")[0]["text"] == "20% faster"
    runs = [trained(f"ga{n}", 10.0, ranks=2, strategy="ddp", accumulation=n) for n in (16, 2, 8, 1)]
    (chart,) = drawn("accumulation", runs=tuple(runs))
    assert [bar["series"] for bar in values(chart, "bar")] == ["GA 1", "GA 2", "GA 8", "GA 16"]


def test_machines_are_compared_by_device_and_by_source() -> None:
    (chart,) = drawn("hardware", runs=study())
    assert [bar["series"] for bar in values(chart, "bar")] == ["Example CPU", "Other CPU"]
    assert values(chart, "text")[0]["text"] == "100% faster"
    again = (trained("x", 10.0, source="runs/monday"), trained("y", 12.0, source="runs/friday"))
    (chart,) = drawn("hardware", runs=again)
    assert [bar["series"] for bar in values(chart, "bar")] == ["Example CPU, monday", "Example CPU, friday"]


def test_weak_and_strong_scaling_are_two_charts() -> None:
    weak = [
        trained(f"w{n}", 20.0 + n, ranks=n, strategy="ddp", scaling="weak", global_batch=64 * n, micro_batch=64,
                samples_per_s=rate(64 * n / (20.0 + n) * 1e3), baseline_id="w1")
        for n in (1, 2, 4)
    ]  # fmt: skip
    runs = (*study(), *weak)
    titles = [chart.title for chart in drawn("scaling", runs=runs, scaling=scaled(runs))]
    assert sum("strong scaling" in title for title in titles) == sum("weak scaling" in title for title in titles) == 1


def test_files_of_a_data_set_are_called_as_document_002_says() -> None:
    runs = imported()
    records = {"runs": runs, "scaling": scaled(runs), "drop_epochs": 1}
    stems = {figure.stem for figure in charts_of(records)[0]}
    assert {"IMDB_epoch_time_detailed", "IMDB_speedup_efficiency", "IMDB_accuracy"} <= stems
    sized = tuple(replace(r, dataset="AG News", dataset_size=1000) for r in runs)
    stems = {f.stem for f in charts_of({**records, "runs": sized, "scaling": scaled(sized)})[0]}
    assert "AG_News_throughput" in stems


def test_epoch_times_leave_out_the_first_epochs_that_are_asked_for() -> None:
    (chart,) = drawn("epoch_time", runs=imported(), drop_epochs=2)
    assert values(chart, "rect") == [{"x": 0.5, "end": 2.5}]
    assert "--drop-epochs 2" in chart.caption
    (chart,) = drawn("epoch_time", runs=imported(), drop_epochs=0)
    assert values(chart, "rect") == []


def test_equal_losses_are_said_to_lie_on_each_other() -> None:
    same = [trained(f"r{n}", 10.0, ranks=2, strategy=s) for n, s in enumerate(("naive", "ddp"))]
    (chart,) = drawn("loss", runs=tuple(same))
    assert "The lines are the same." in chart.caption
    off = replace(same[1], epochs=epochs(seconds=[1.0, 1.0], loss=[2.0, 1.5]))
    (chart,) = drawn("loss", runs=(same[0], off))
    assert "differ by 50% at most (relative to naive, epoch 2)" in chart.caption


def test_runs_by_steps_show_the_loss_of_their_steps() -> None:
    runs = [trained(f"r{n}", 10.0, ranks=2, strategy=s, epochs=()) for n, s in enumerate(("naive", "ddp"))]
    (chart,) = drawn("loss", runs=tuple(runs), cells=tuple(cell(r) for r in runs))
    assert chart.spec["encoding"]["x"]["title"] == "step"
    assert values(chart, "line")[0]["y"] == pytest.approx(2 * 64.0 / 64)
    assert "The lines are the same." in chart.caption


def test_losses_of_other_data_or_batch_are_not_laid_over_each_other() -> None:
    runs = (trained("a", 10.0), trained("b", 9.0, ranks=2, strategy="ddp", global_batch=64))
    assert drawn("loss", runs=runs) == ()


def bars(chart: Chart) -> dict[str, dict[str, float]]:
    """Row -> kind -> length."""
    rows: dict[str, dict[str, float]] = {}
    for bar in values(chart, "bar"):
        rows.setdefault(bar["row"], {})[bar["series"]] = bar["to"] - bar["from"]
    return rows


def test_the_budget_of_a_trace_sums_to_the_window_and_many_ranks_are_limited() -> None:
    (chart,) = drawn("trace_budget", traces=(trace(),))
    assert [sum(row.values()) for row in bars(chart).values()] == [pytest.approx(100)] * 2
    (chart,) = drawn("trace_budget", traces=(trace(ranks=64),))
    assert len(bars(chart)) == 20
    assert next(iter(bars(chart))) == "rank 63"
    assert "20 of 64 ranks" in chart.title


def test_the_heat_map_holds_own_time_beyond_the_others() -> None:
    (chart,) = drawn("stragglers", cells=(cell(study()[2], late=1, by_ms=3.0),))
    own = 3.0 * 0.9  # a tenth of a hand-made step is exposed communication
    assert [value["value"] for value in values(chart, "rect")] == [-own] * 40 + [own] * 40
    assert "Rank 1 on node-a takes" in chart.caption


def test_the_heat_map_shows_the_worst_cells_first_and_few_of_them() -> None:
    cells = tuple(cell(trained(f"c{n}", 10.0, ranks=2), by_ms=float(n)) for n in range(8))
    assert [chart.key for chart in drawn("stragglers", cells=cells)] == ["c7", "c6", "c5", "c4"]
    (long,) = drawn("stragglers", cells=(cell(study()[2], steps=300),))
    (first, *_, last) = values(long, "rect")
    assert (len(values(long, "rect")), first["to"], last["to"]) == (200, 3, 300)


def test_what_most_runs_have_is_compared() -> None:
    steps, rates = trained("a", 10.0), trained("b", 12.0)
    assert quantity((steps, rates), 1).name == "time per step"
    assert quantity((steps, replace(rates, global_batch=8)), 1).name == "throughput"
    assert quantity(imported(), 1).name == "epoch time"
    assert quantity((failed("a"),), 1) is None
    bare = replace(run("x"), samples_per_s=exact(5.0), unit="tokens")
    assert quantity((bare,), 1).axis == "throughput (tokens/s)"


def test_names_say_what_differs_and_are_never_the_same() -> None:
    assert names(study()[1:4]) == ("naive, 2 ranks", "ddp, 2 ranks", "ddp, 4 ranks")
    twins = (trained("first", 1.0), trained("second", 1.0))
    assert names(twins) == ("single, 1 rank, first", "single, 1 rank, second")


HOSTILE = r"$\frac{<script>alert(1)</script>} & \input{/etc/passwd}% 中文 \ud800 " + "\ud800\x00\n" + "x" * 300


def hostile() -> dict[str, Any]:
    """The same study under names that are markup, paths and rubbish."""
    runs = tuple(
        replace(r, model=HOSTILE, dataset=f"../../{HOSTILE}", label=HOSTILE, strategy=f"{r.strategy}{HOSTILE[:40]}",
                hardware=None if r.hardware is None else r.hardware + HOSTILE)
        for r in (*study(), *imported())
    )  # fmt: skip
    of = replace(cell(runs[2]), run=runs[2])
    return {"runs": runs, "scaling": scaled(runs), "cells": (of,), "traces": (trace(HOSTILE),)}


def test_hostile_names_are_drawn_as_text_and_stay_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "report"
    paths = write(begin(hostile(), ("svg",)), folder)
    assert len(paths) > 8
    assert {path.parent for path in paths} == {folder}
    assert sorted(tmp_path.iterdir()) == [folder]
    page = (folder / "charts.md").read_text()
    assert "<script" not in page.replace("\\<script", "")
    for path in paths[:-1]:
        assert b"<script" not in path.read_bytes()


def test_text_of_users_is_one_short_printable_line() -> None:
    assert clean("a\n\tb\x00c\ud800") == "a b c"
    assert len(clean("x" * 500)) == 60
    assert file_part("../AG News: $x") == "AG_News-_-x"
    assert file_part("///") == "unnamed"
    assert lines("one two three four five", 8) == "one two\nthre…ive"


def study_of(cells: int) -> tuple[Any, ...]:
    """``cells`` runs: models, strategies, ranks and precisions crossed."""
    runs = []
    for n in range(cells):
        ranks = (1, 2, 4, 8)[n % 4]
        strategy = "single" if ranks == 1 else ("naive", "ddp", "bucketed", "interleaved")[n // 4 % 4]
        runs.append(
            trained(
                f"cell{n}", 10.0 + n % 17, ranks=ranks, strategy=strategy, model=f"model {n // 32% 8}",
                precision=("fp32", "amp_bf16")[n // 16 % 2], accumulation=1 + n // 256, baseline_id=None,
                group=f"{n // 32% 8}-{n // 16% 2}-{n // 256}",
            )
        )  # fmt: skip
    return tuple(runs)


def test_five_hundred_cells_make_readable_charts(tmp_path: Path) -> None:
    runs = study_of(500)
    records = {"runs": runs, "scaling": scaled(runs), "cells": tuple(cell(r) for r in runs[1:20:4])}
    shown, left_out = charts_of(records, FEW_CHARTS)
    assert len(shown) == FEW_CHARTS
    assert left_out
    assert {f.view for f in shown} >= {"throughput", "strategies", "precision", "scaling", "stragglers"}
    for figure in shown:
        axis = figure.spec.get("encoding", {}).get("y", {})
        assert len(axis.get("scale", {}).get("domain", ())) <= 28
    paths = write(begin(records), tmp_path)
    assert len(paths) == 2 * FEW_CHARTS + 1  # a picture and its description each, and the captions
    assert "Left out: " in paths[-1].read_text()


def test_losses_that_are_no_numbers_are_left_out() -> None:
    odd = [
        replace(r, epochs=epochs(seconds=[1.0, 1.0, 1.0], loss=[1.0, float("nan"), 0.5])) for r in study()[1:3]
    ]  # fmt: skip
    (chart,) = drawn("loss", runs=tuple(odd))
    assert [point["x"] for point in values(chart, "line")][:2] == [1, 3]


def test_two_data_sets_of_one_file_name_do_not_overwrite_each_other(tmp_path: Path) -> None:
    runs = [replace(r, dataset=d, run_id=f"{r.run_id}{d}") for d in ("a b", "a_b") for r in imported()]
    paths = write(begin({"runs": tuple(runs)}), tmp_path)
    names_ = [path.name for path in paths]
    assert len(set(names_)) == len(names_)
    assert {"a_b_accuracy.png", "a_b_accuracy-2.png"} <= set(names_)


def test_lines_that_nobody_sees_apart_are_one() -> None:
    def curve(name: str, last: float) -> RunCurve:
        return RunCurve(name, (CurvePoint(1, 2.0), CurvePoint(2, last)))

    one, two = alike_as_one((curve("naive", 1.0), curve("ddp", 1.0001), curve("zero", 0.9995), curve("late", 1.2)))
    assert one.name == "naive and 2 more, the same"
    assert two.name == "late"
    (pair,) = alike_as_one((curve("naive", 1.0), curve("ddp", 1.0)))
    assert pair.name == "naive = ddp"
    longer = RunCurve("ddp", (*curve("ddp", 1.0).points, CurvePoint(3, 1.0)))
    (both,) = alike_as_one((curve("naive", 1.0), longer))  # naive ends early
    assert (both.name, len(both.points)) == ("ddp = naive", 3)
    later = replace(longer, points=longer.points[1:])
    assert len(alike_as_one((curve("naive", 1.0), later))) == 2


def test_one_bar_is_not_drawn_in_the_page_and_two_are() -> None:
    runs = imported()
    found = {f.view: f for f in charts_of({"runs": runs, "scaling": scaled(runs), "drop_epochs": 1})[0]}
    assert found["speedup_efficiency"].one_bar
    assert not found["throughput"].one_bar
    assert not found["accuracy"].one_bar


def test_waiting_and_transfer_are_two_colours_in_the_trace_budget(tmp_path: Path) -> None:
    _, later = drawn("trace_budget", traces=pages.late_jobs(tmp_path).traces)
    waits, late = bars(later)["rank 0"], bars(later)["rank 1"]
    assert {"waiting for other ranks", "exposed transfer"} <= waits.keys()
    assert "waiting for other ranks" not in late  # the straggler waits for nobody
    assert waits["waiting for other ranks"] > 2
    assert sum(waits.values()) == pytest.approx(100, rel=1e-4)

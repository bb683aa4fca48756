"""All steps of a profiled job: points that are drawn, shades, marks of events, parts that add up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.described import drawn, names, values
from tests.diaries import EVALUATION_MS, EVERY, MS, WINDOW, job, planted, write_diary, write_record, write_samples

from stepscope.diagnose.rank_rows import rank_rows
from stepscope.report.shared.curves import bucketed, extremes, middles
from stepscope.report.vega import Chart
from stepscope.report.views import diary, job_memory, step_parts
from stepscope.results.profiled_job import read_profiled_job
from stepscope.store.layout import ProfileLayout

MIB = 2**20


@given(st.lists(st.floats(0.001, 1e6), min_size=1, max_size=400), st.integers(1, 50))
def test_extremes_keep_the_ends_and_each_buckets_lowest_and_highest(values: list[float], buckets: int) -> None:
    found = np.array(values)
    kept = extremes(found, buckets)
    assert kept.size <= max(2 * buckets + 2, found.size if found.size <= 2 * buckets else 0)
    assert (np.diff(kept) > 0).all()
    assert {0, found.size - 1} <= set(kept.tolist())
    assert found[kept].max() == found.max()
    assert found[kept].min() == found.min()


def test_a_spike_of_one_step_in_many_is_drawn() -> None:
    values = np.ones(100_000)
    values[77_777] = 50.0
    kept = extremes(values, 300)
    assert kept.size <= 602
    assert 77_777 in kept
    at, median = middles(values, 300)
    assert max(median) == 1.0
    assert (at[0], at[-1]) == (pytest.approx(167, abs=1), pytest.approx(99_834, abs=1))
    assert bucketed(np.arange(10.0), 5).tolist() == [0.5, 2.5, 4.5, 6.5, 8.5]


def diary_of(folder: Path) -> tuple[Chart, dict[str, list[dict[str, float]]]]:
    """The chart of all steps, and the points of each line, or of its median where that is drawn over it."""
    (chart,) = drawn("diary", profiled=(job(folder),))
    lines: dict[str, list[dict[str, float]]] = {}
    for value in (*values(chart, "area"), *values(chart, "line")):
        lines.setdefault(value["series"], []).append(value)
    return chart, lines


def test_each_rank_is_a_line_without_what_lies_between_steps(tmp_path: Path) -> None:
    chart, lines = diary_of(planted(tmp_path / "run"))
    assert list(lines) == ["rank 0", "rank 1"]
    assert len(lines["rank 1"]) == 200
    assert lines["rank 1"][0]["said"] == "rank 1: median 36.0 ms, longest 76.0 ms in step 1"
    steps = {point["x"]: point["y"] for point in lines["rank 1"]}
    assert steps[EVERY] == pytest.approx(36)
    assert steps[WINDOW[0]] == pytest.approx(41)
    assert "all 200 steps on 2 ranks" in chart.caption


def test_a_long_job_is_two_thousand_points_and_loses_no_spike(tmp_path: Path) -> None:
    chart, lines = diary_of(planted(tmp_path / "run", steps=20_000, long_step=12_345))
    assert sum(map(len, lines.values())) <= diary.POINTS + 10
    for points in lines.values():
        drawn_over = next(n for n, point in enumerate(points) if "said" in point)
        assert {point["x"]: point["y"] for point in points[:drawn_over]}[12_345] == pytest.approx(96, rel=1e-4)
        assert max(point["y"] for point in points[drawn_over:]) == pytest.approx(36)
    marks = values(chart, "tick")
    assert len(marks) <= diary.MARKS
    assert sum(int(mark["said"].partition("evaluation, ")[2].split()[0]) for mark in marks) == 2 * 20_000 // EVERY


def test_many_ranks_are_a_band_and_their_median(tmp_path: Path) -> None:
    folder = planted(tmp_path / "run", ranks=6)
    rank = {"forward": np.full(200, 20.0), "backward": np.full(200, 30.0)}
    write_diary(folder, rank, rank=5, world_size=6)
    _, lines = diary_of(folder)
    band, median = lines.values()
    assert (band[100]["y"], band[100]["high"]) == (pytest.approx(36), pytest.approx(50))
    assert median[0]["said"].startswith("median rank: median 36.0 ms")


def test_warm_up_and_the_window_are_shaded(tmp_path: Path) -> None:
    chart, _ = diary_of(planted(tmp_path / "run"))
    shades = {shade["series"]: (shade["x"] + 0.5, shade["end"] - 0.5) for shade in values(chart, "rect")}
    assert shades["profiled"] == WINDOW
    assert shades["warm-up"][0] == 1
    assert shades["warm-up"][1] < WINDOW[0]


def test_periodic_events_are_named_and_marked_where_they_happen(tmp_path: Path) -> None:
    chart, _ = diary_of(planted(tmp_path / "run"))
    marks = values(chart, "tick")
    assert {mark["series"] for mark in marks} == {"evaluation every 25 steps"}
    assert [mark["x"] for mark in marks] == list(range(EVERY, 201, EVERY))
    assert marks[0]["said"] == f"step {EVERY}: evaluation, 2 times, {2 * EVALUATION_MS:.0f} ms"
    assert "evaluation" in chart.caption


@pytest.mark.parametrize(("long_ms", "kind"), [(60.0, "linear"), (6000.0, "log")])
def test_step_times_lie_below_the_rows_of_events(tmp_path: Path, long_ms: float, kind: str) -> None:
    spec = diary_of(planted(tmp_path / "run", long_step=100, long_ms=long_ms))[0].spec
    scale = spec["encoding"]["y"]["scale"]
    highest = (36 + long_ms) * (1e-3 if long_ms > 1000 else 1)
    if kind == "log":
        assert scale["type"] == "log"
        bottom, top = scale["domain"]
        share = np.log(highest / bottom) / np.log(top / bottom)
    else:
        assert "type" not in scale
        share = highest / scale["domainMax"]
    assert 0.8 < share <= diary.HIGH / spec["height"] + 1e-9


def test_a_table_of_events_has_their_period_cost_and_share(tmp_path: Path) -> None:
    (row,) = diary.build([job(planted(tmp_path / "run"))]).rows
    found = dict(zip([c.key for c in diary.build([]).columns], [v.raw for v in row.values], strict=True))
    assert (found["event"], found["period_steps"], found["ranks"]) == ("evaluation", 25, "0 1")
    assert found["mean"] == EVALUATION_MS * MS
    assert found["wall_share"] == pytest.approx(100 / (100 + 25 * 36), rel=0.1)


def test_areas_are_the_parts_and_stop_at_the_window(tmp_path: Path) -> None:
    (chart,) = drawn("step_parts", profiled=(job(planted(tmp_path / "run")),))
    tops = {point["x"]: point["to"] for point in values(chart, "area")}  # of the last area, the highest
    assert set(tops.values()) == {36.0}
    stretches = [
        [x for x, of in {p["x"]: p["stretch"] for p in values(chart, "area")}.items() if of == n] for n in (0, 1)
    ]
    assert (max(stretches[0]), min(stretches[1])) == (WINDOW[0] - 1, WINDOW[1] + 1)


def test_a_job_of_three_steps_has_a_chart_and_no_rows_of_events(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    write_diary(folder, {"forward": [80.0, 8.0, 9.0], "backward": [20.0, 16.0, 15.0]}, flags=[16, 0, 0])
    chart, lines = diary_of(folder)
    assert [point["x"] for point in lines["rank 0"]] == [1, 2, 3]
    assert values(chart, "tick") == []
    assert diary.build([job(folder)]).rows == ()
    assert drawn("step_parts", profiled=(job(folder),)) == ()


def test_a_job_without_steps_has_no_chart(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    assert drawn("diary", profiled=(job(folder),)) == ()
    assert step_parts.build([job(folder)]).rows == ()


def test_memory_of_the_ranks_that_grow_comes_first_and_is_drawn(tmp_path: Path) -> None:
    folder = planted(tmp_path / "run", ranks=6)
    for rank, path in enumerate(ProfileLayout(folder).diaries()):
        grows = 4 * MIB if rank == 4 else 0
        write_samples(path, [(400 + rank) * MIB + grows * n for n in range(20)], steps_per_s=8.0, available=2.0**36)
    (chart,) = drawn("memory_over_time", profiled=(job(folder),))
    assert names(chart) == [f"rank {rank}" for rank in (2, 3, 4, 5)]
    points = [(point["x"], point["y"]) for point in values(chart, "line") if point["series"] == "rank 4"]
    assert (points[0], points[-1]) == ((0.0, 404), (pytest.approx(19.0), 480))
    assert chart.caption.startswith("Resident memory of 4 of 6 ranks")
    table = job_memory.build([job(folder)])
    keys = [c.key for c in table.columns]
    rows = [dict(zip(keys, [v.raw for v in row.values], strict=True)) for row in table.rows]
    assert [row["rank"] for row in rows] == [4, 5, 3, 2, 1, 0]
    assert rows[0]["growth"] == pytest.approx(MIB / 2)
    assert rows[1]["growth"] is None


def test_a_rank_that_never_waits_has_a_waiting_of_nothing_and_what_no_rank_has_is_unknown(tmp_path: Path) -> None:
    found = read_profiled_job(planted(tmp_path / "run", ranks=3))
    assert found is not None
    assert found.steps is not None
    waits = np.where(np.arange(3)[:, None] == 1, 0.0, np.ones_like(found.steps.whole_ns) * MS)
    steps = replace(found.steps, comm_ns=waits)
    assert [row.parts["waiting"] for row in rank_rows(steps)] == [MS, 0.0, MS]
    assert {row.parts["transfer"] for row in rank_rows(steps)} == {None}
    unseen = replace(steps, comm_ns=np.where(waits > 0, waits, np.nan))
    assert [row.parts["waiting"] for row in rank_rows(unseen)] == [MS, None, MS]

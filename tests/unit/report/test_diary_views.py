"""All steps of a profiled job: points that are drawn, shades, marks of events, parts that add up."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diaries import EVALUATION_MS, EVERY, MS, WINDOW, job, planted, write_diary, write_record, write_samples

from stepscope.report.render import files
from stepscope.report.shared.curves import bucketed, extremes, middles
from stepscope.report.views import diary, job_memory, step_parts
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


def test_each_rank_is_a_line_without_what_lies_between_steps(tmp_path: Path) -> None:
    (found,) = diary.prepare([job(planted(tmp_path / "run"))])
    assert [line.name for line in found.lines] == ["rank 0", "rank 1"]
    line = found.lines[1]
    assert len(line.points) == found.steps == 200
    assert line.median_ns == pytest.approx(36 * MS)
    assert line.highest == (1, pytest.approx(76 * MS))
    assert dict(line.points)[EVERY] == pytest.approx(36 * MS)
    assert dict(line.points)[WINDOW[0]] == pytest.approx(41 * MS)
    assert line.middles == ()


def test_a_long_job_is_two_thousand_points_and_loses_no_spike(tmp_path: Path) -> None:
    (found,) = diary.prepare([job(planted(tmp_path / "run", steps=20_000, long_step=12_345))])
    assert sum(len(line.points) + len(line.middles) for line in found.lines) <= diary.POINTS + 10
    for line in found.lines:
        assert dict(line.points)[12_345] == pytest.approx(96 * MS)
        assert max(ns for _, ns in line.middles) == pytest.approx(36 * MS)
    assert sum(len(lane.marks) for lane in found.lanes) <= diary.MARKS
    assert sum(count for lane in found.lanes for _, _, count, _ in lane.marks) == 2 * 20_000 // EVERY


def test_many_ranks_are_a_band_and_their_median(tmp_path: Path) -> None:
    folder = planted(tmp_path / "run", ranks=6)
    rank = {"forward": np.full(200, 20.0), "backward": np.full(200, 30.0)}
    write_diary(folder, rank, rank=5, world_size=6)
    (found,) = diary.prepare([job(folder)])
    band, median = found.lines
    assert (band.band, median.band) == (True, False)
    assert band.points[100][1:] == (pytest.approx(36 * MS), pytest.approx(50 * MS))
    assert median.median_ns == pytest.approx(36 * MS)


def test_warm_up_and_the_window_are_shaded(tmp_path: Path) -> None:
    (found,) = diary.prepare([job(planted(tmp_path / "run"))])
    shades = {shade.name: (shade.first, shade.last) for shade in found.shades}
    assert shades["profiled"] == WINDOW
    assert shades["warm-up"][0] == 1
    assert shades["warm-up"][1] < WINDOW[0]


def test_periodic_events_are_named_and_marked_where_they_happen(tmp_path: Path) -> None:
    (found,) = diary.prepare([job(planted(tmp_path / "run"))])
    (lane,) = found.lanes
    assert lane.name == "evaluation every 25 steps"
    assert [mark[:2] for mark in lane.marks] == [(n, n) for n in range(EVERY, 201, EVERY)]
    assert all(mark[2:] == (2, 2 * EVALUATION_MS * MS) for mark in lane.marks)
    assert "evaluation" in diary.caption(found)


@pytest.mark.parametrize(("long_ms", "kind"), [(60.0, "linear"), (6000.0, "log")])
def test_step_times_lie_below_the_rows_of_events(tmp_path: Path, long_ms: float, kind: str) -> None:
    (found,) = diary.prepare([job(planted(tmp_path / "run", long_step=100, long_ms=long_ms))])
    spec = diary.step_chart(found)
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


def test_parts_add_up_to_the_step_on_every_rank(tmp_path: Path) -> None:
    table = step_parts.build([job(planted(tmp_path / "run"))])
    keys = [c.key for c in table.columns]
    assert keys[-2:] == ["rank_0", "rank_1"]
    rows = {row.values[1].raw: dict(zip(keys, [v.raw for v in row.values], strict=True)) for row in table.rows}
    ms = {part: tuple(round(row[key] / MS, 3) for key in ("mean", "rank_0", "rank_1")) for part, row in rows.items()}
    assert ms == {
        "data": (2, 2, 2), "computation": (28, 25, 31), "forward": (8, 8, 8), "backward": (19, 16, 22),
        "optimizer": (1, 1, 1), "communication": (6, 9, 3), "transfer": (3, 3, 3), "waiting": (3, 6, 0),
        "a step": (36, 36, 36),
    }  # fmt: skip
    assert rows["a step"]["share"] == pytest.approx(1.0)
    assert "\u00a0" not in files.as_csv(table)


def test_areas_are_the_parts_and_stop_at_the_window(tmp_path: Path) -> None:
    (found,) = step_parts.prepare([job(planted(tmp_path / "run"))])
    for moment in zip(*(values for _, values in found.parts), strict=True):
        assert sum(moment) == pytest.approx(36 * MS)
    gaps = [(found.at[first - 1], found.at[first]) for first, _ in found.stretches[1:]]
    assert gaps == [(WINDOW[0] - 1, WINDOW[1] + 1)]


def test_a_job_of_three_steps_has_a_chart_and_no_rows_of_events(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    write_diary(folder, {"forward": [80.0, 8.0, 9.0], "backward": [20.0, 16.0, 15.0]}, flags=[16, 0, 0])
    (found,) = diary.prepare([job(folder)])
    assert [step for step, _ in found.lines[0].points] == [1, 2, 3]
    assert found.lanes == ()
    assert diary.build([job(folder)]).rows == ()
    assert step_parts.prepare([job(folder)]) == ()


def test_a_job_without_steps_has_no_chart(tmp_path: Path) -> None:
    folder = write_record(tmp_path / "run")
    assert diary.prepare([job(folder)]) == ()
    assert step_parts.build([job(folder)]).rows == ()


def test_memory_of_the_ranks_that_grow_comes_first_and_is_drawn(tmp_path: Path) -> None:
    folder = planted(tmp_path / "run", ranks=6)
    for rank, path in enumerate(ProfileLayout(folder).diaries()):
        grows = 4 * MIB if rank == 4 else 0
        write_samples(path, [(400 + rank) * MIB + grows * n for n in range(20)], steps_per_s=8.0, available=2.0**36)
    (found,) = job_memory.prepare([job(folder)])
    assert [each.rank for each, _ in found.lines] == [2, 3, 4, 5]
    points = found.lines[2][1]
    assert (found.of, found.ranks, points[0]) == ("host", 6, (0.0, 404 * MIB))
    assert points[-1] == (pytest.approx(19.0), 480 * MIB)
    table = job_memory.build([job(folder)])
    keys = [c.key for c in table.columns]
    rows = [dict(zip(keys, [v.raw for v in row.values], strict=True)) for row in table.rows]
    assert [row["rank"] for row in rows] == [4, 5, 3, 2, 1, 0]
    assert rows[0]["growth"] == pytest.approx(MIB / 2)
    assert rows[1]["growth"] is None

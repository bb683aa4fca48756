"""Frames: columns, rows, and what other libraries take of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from stepscope.api.tables import joined
from stepscope.core.errors import UsageError
from stepscope.report.frame import Frame, frame_of, stacked
from stepscope.report.table import Column, duration, lead_column, tabled

ROWS = [{"name": "a<b", "ns": 1_500, "share": None}, {"name": "c", "ns": None, "share": 0.5}]


@pytest.fixture
def frame() -> Frame:
    columns = (lead_column("name", "name", lambda r: r["name"]), Column("ns", "time", lambda r: r["ns"], duration))
    share = Column("share", "share", lambda r: r["share"])
    return frame_of(tabled("key", "Title", ROWS, *columns, share))


def made(count: int) -> Frame:
    columns = {"rank": np.arange(count), "time": np.linspace(0, 1, count)}
    return Frame(key="k", title="T", columns=columns, units={"time": "ns"})


def test_columns_rows_and_slices(frame: Frame) -> None:
    assert frame["ns"] == [1_500, None]
    assert frame[-1] == ROWS[-1]
    assert list(frame) == ROWS
    assert len(frame[:1]) == 1
    assert list(frame[:1]["name"]) == ["a<b"]
    with pytest.raises(UsageError):
        frame["time"]
    with pytest.raises(IndexError):
        frame[2]


def test_rows_of_arrays_are_plain_values() -> None:
    row = made(3)[1]
    assert row == {"rank": 1, "time": 0.5}
    assert [type(value) for value in row.values()] == [int, float]


def test_arrow_takes_frames_with_their_types(frame: Frame) -> None:
    arrow = pytest.importorskip("nanoarrow")
    stream = arrow.ArrayStream(frame)
    assert [(field.name, field.type.name) for field in stream.schema.fields] == [
        ("name", "STRING"),
        ("ns", "INT64"),
        ("share", "DOUBLE"),
    ]
    assert stream.read_all().to_pylist() == ROWS
    assert arrow.ArrayStream(made(3)).read_all().to_pylist()[2] == {"rank": 2, "time": 1.0}


def test_a_notebook_shows_the_first_rows_and_escapes_names(frame: Frame) -> None:
    html = frame._repr_html_()
    assert "a&lt;b" in html
    assert "1.50 us" in html
    long = made(100)._repr_html_()
    assert long.count("<tr>") == 21
    assert "80 more rows" in long
    assert ">share<" in html
    assert ">share<" not in frame[:1]._repr_html_()


def test_times_are_written_with_their_unit_and_points_in_time_are_not() -> None:
    columns = {"ts_ns": [10**15], "dur_ns": [1_500], "share": [0.25], "who": ["a"]}
    html = Frame(key="k", title="T", columns=columns, units={"ts_ns": "ns", "dur_ns": "ns"})._repr_html_()
    assert re.findall(">([^<>]+)</td>", html) == ["1000000000000000", "1.50 us", "0.25", "a"]
    assert [found == "left" for found in re.findall('<td style="(?:text-align:(left);)?', html)] == [False] * 3 + [True]


def test_tables_of_several_jobs_are_written_as_those_of_one(frame: Frame) -> None:
    both = joined("job", {"x": frame, "y": frame})
    assert both["job"] == ["x", "x", "y", "y"]
    assert both._repr_html_().count("1.50 us") == 2
    other = Frame(key="key", title="Title", columns={"name": ["c"]}, units={})
    assert joined("job", {"x": frame, "y": other}).table is None


def test_frames_of_several_jobs_name_them() -> None:
    both = joined("job", {"x": made(2), "y": made(1)})
    assert both["job"] == ["x", "x", "y"]
    assert both["rank"].tolist() == [0, 1, 0]  # type: ignore[union-attr]
    assert joined("job", {"x": made(2)}).columns.keys() == made(2).columns.keys()


def test_a_notebook_says_why_rows_failed() -> None:
    columns = (lead_column("name", "name", str), Column("ns", "time", lambda _: None, duration))
    table = tabled("key", "Title", ["a"], *columns, failure=lambda _: "out of memory")
    assert "out of memory" in frame_of(table)._repr_html_()


def test_whole_numbers_stay_so_beside_what_is_unknown() -> None:
    late = 1_694_128_201_428_006_123  # more digits than a float has
    known = Frame(key="k", title="", columns={"ts_ns": np.array([late])}, units={"ts_ns": "ns"})
    unknown = Frame(key="k", title="", columns={"ts_ns": [None]}, units={})
    frame = stacked((known, unknown))
    assert [type(value) for value in frame["ts_ns"]] == [int, type(None)]
    pandas = pytest.importorskip("pandas")
    assert frame.to_pandas()["ts_ns"].tolist() == [late, pandas.NA]

"""Every chart of the registry: pure data, axes with units, captions, files that are the same every time."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests import comm_rows, training_records
from tests.comm_rows import MIB, SIZES, collective, pairs, row, sweep

from stepscope.core.errors import UsageError
from stepscope.report.charts import REGISTRY, draw_charts
from stepscope.report.charts._common import given
from stepscope.report.charts._style import plain_number, size_tick, style
from stepscope.report.render.figure import render

UNIT = re.compile(
    r"\((µs|ms|s|GB/s|bytes.*|MiB|GiB|rank|host, rank|x|%|(1000 )?samples/s|epochs/h)\)$"
    r"|^(ranks|epoch|step|step after warm-up|efficiency|training loss of a sample)$"  # pure numbers
)


def records() -> dict[str, object]:
    two, four = sweep(world_size=2, link_peak_bytes_per_s=5e9), sweep(world_size=4, alpha_us=900)
    fits = [
        comm_rows.fit(two, alpha_us=20, rate=3e9, wiggle=0.05),
        comm_rows.fit(four, alpha_us=900, rate=2e9),
    ]
    hosts = ("a", "a", "b", "b")
    messages = pairs(4, slow_egress={1: 4.0}, noise=random.Random(0), rank_hosts=hosts)
    measured = {"rows": [*two, *four, *messages], "calibration": comm_rows.calibration(*fits)}
    return {**measured, **training_records.everything()}


def prepared(key: str, found: dict[str, object] | None = None):
    chart = REGISTRY.load(key)
    keywords = given(chart, records() if found is None else found)
    return chart, () if keywords is None else chart.prepare(**keywords)


@pytest.mark.parametrize("key", REGISTRY.names())
def test_a_chart_is_called_as_its_file_and_prepares_frozen_data(key: str) -> None:
    chart, data = prepared(key)
    assert chart.key == key
    assert data
    assert len({datum.key for datum in data}) == len(data)
    assert all(hash(datum) == hash(again) for datum, again in zip(data, prepared(key)[1], strict=True))
    assert all(re.fullmatch(r"[\w.-]+", datum.key) for datum in data)


@pytest.mark.parametrize("key", REGISTRY.names())
def test_axes_carry_units_and_a_title(key: str) -> None:
    from matplotlib.figure import Figure

    chart, data = prepared(key)
    for datum in data:
        with style():
            figure = Figure(figsize=chart.size_inches(datum))
            chart.draw(datum, figure.add_subplot())
            labels = [a.get_ylabel() for a in figure.axes] + [a.get_xlabel() for a in figure.axes]
        labels = [label for label in labels if label]
        assert labels
        assert all(UNIT.search(label) for label in labels), labels
        above = figure.axes[0].get_title(loc="left") or figure.get_suptitle()
        assert above.replace("\n", " ") == datum.title


@pytest.mark.parametrize("key", REGISTRY.names())
def test_captions_say_what_is_seen(key: str) -> None:
    chart, data = prepared(key)
    for datum in data:
        text = chart.caption(datum)
        assert text.endswith(".")
        assert len(text) > 80
        assert re.search(r"\d", text)


@pytest.mark.parametrize("key", REGISTRY.names())
def test_the_same_data_give_the_same_file(key: str) -> None:
    chart, data = prepared(key)
    png = render(chart, data[0])
    assert png.startswith(b"\x89PNG")
    assert render(chart, data[0]) == png
    svg = render(chart, data[0], format_="svg")
    assert render(chart, data[0], format_="svg") == svg
    assert b"<dc:description>" in svg


@pytest.mark.parametrize("key", REGISTRY.names())
def test_a_chart_without_what_it_needs_is_not_drawn(key: str) -> None:
    chart, _ = prepared(key)
    for name in chart.needs:
        assert given(chart, {**records(), name: None}) is None


def test_importing_the_charts_loads_no_matplotlib() -> None:
    code = (
        "import sys\nfrom stepscope.report.charts import REGISTRY, draw_charts\n"
        "[REGISTRY.load(n) for n in REGISTRY.names()]\nimport stepscope.report.render.figure\n"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_users_own_matplotlib_settings_change_nothing() -> None:
    import matplotlib as mpl

    chart, data = prepared("comm_time")
    plain = render(chart, data[0])
    with mpl.rc_context({"font.size": 20, "axes.grid": False, "lines.linewidth": 9}):
        assert render(chart, data[0]) == plain
        assert mpl.rcParams["font.size"] == 20


def test_time_lines_hold_median_and_spread_in_ns() -> None:
    _, (datum, *_) = prepared("comm_time")
    assert [line.name for line in datum.lines] == ["2 ranks", "4 ranks"]
    first = datum.lines[0].points[0]
    source = sweep(world_size=2)[0]
    assert (first.value, first.fast, first.slow) == (
        source.time_ns_median,
        source.time_ns_min,
        source.time_ns_p90,
    )
    assert datum.lines[0].fitted[0][0] == SIZES[0]
    assert datum.lines[0].fitted[-1][0] == SIZES[-1]


def test_busbw_of_a_fast_call_is_high_and_the_fit_is_on_the_same_scale() -> None:
    _, (datum, *_) = prepared("comm_busbw")
    line, source = datum.lines[1], sweep(world_size=4, alpha_us=900)
    for point, r in zip(line.points, source, strict=True):
        assert point.value == pytest.approx(r.busbw_bytes_per_s)
        assert point.fast > point.value > point.slow
    fitted = dict(line.fitted)
    assert fitted[SIZES[0]] == pytest.approx(source[0].busbw_bytes_per_s, rel=1e-6)
    assert fitted[SIZES[8]] == pytest.approx(source[8].busbw_bytes_per_s, rel=1e-6)


def test_what_gave_no_trustworthy_time_is_not_drawn() -> None:
    rows = [
        *sweep(sizes=SIZES[:2]),
        collective(SIZES[2], 9.0, correct=False, status="error"),
        collective(SIZES[3], 9.0, correct=False),
        row(status="timeout"),
        row(status="skipped", asked_bytes=4096),
    ]
    _, (datum,) = prepared("comm_time", {"rows": rows})
    (line,) = datum.lines
    assert [p.size_bytes for p in line.points] == list(SIZES[:2])


def test_more_sweeps_than_colours_are_several_charts() -> None:
    rows = [r for n in range(2, 12) for r in sweep(world_size=n, sizes=SIZES[:3])]
    _, data = prepared("comm_time", {"rows": rows})
    assert [len(datum.lines) for datum in data] == [7, 3]
    assert [datum.title for datum in data] == [
        "all_reduce, cpu/gloo (1 of 2)",
        "all_reduce, cpu/gloo (2 of 2)",
    ]


def test_a_fit_of_other_settings_is_not_drawn() -> None:
    base = sweep(world_size=2)
    fits = comm_rows.calibration(comm_rows.fit(base, alpha_us=50, rate=2e9))
    for shape in ({"env": {"NCCL_ALGO": "Ring"}}, {"dtype": "bf16"}, {"mode": "async", "in_flight": 4}):
        rows = [replace(r, **shape) for r in base]
        _, (datum,) = prepared("comm_time", {"rows": rows, "calibration": fits})
        assert datum.lines[0].fitted == ()


def test_the_heat_map_marks_the_slow_row() -> None:
    _, (datum,) = prepared("pairs")
    assert datum.slow == ((1, 0), (1, 2), (1, 3))
    assert datum.values[0][0] is None
    chart, (small,) = prepared("pairs", {"rows": pairs(4, size_bytes=4, us=30.0)})
    assert (small.quantity, small.values[0][1]) == ("time", 30_000.0)
    assert chart.caption(small).startswith("Time of messages of 4 B")
    chart, (both,) = prepared("pairs", {"rows": pairs(4, bidirectional=True)})
    assert both.values[0][1] == both.values[1][0]
    assert "No pair is slow" in chart.caption(both)
    chart, (two,) = prepared("pairs", {"rows": pairs(2)})
    assert "Too few pairs" in chart.caption(two)


def test_the_calibration_chart_says_where_the_line_fails() -> None:
    chart, (bent, straight) = prepared("calibration")
    assert "most at 1 KiB: it says 0.4" in chart.caption(bent)
    assert "most at" not in chart.caption(straight)


@pytest.mark.parametrize("shape", ["one size", "one call", "wide", "24 ranks", "barrier"])
def test_odd_data_are_drawn_without_a_warning(shape: str) -> None:
    rows = {
        "one size": [collective(MIB, 9.0)],
        "one call": [collective(MIB, 9.0, time_ns_min=None, time_ns_p90=None)],
        "wide": [collective(1, 1e-3), collective(2**40, 1e9)],
        "24 ranks": pairs(24, us=5.0),
        "barrier": [*sweep("barrier", sizes=(0,)), *sweep(sizes=SIZES[:2])],
    }[shape]
    drawn = 0
    for key in REGISTRY.names():
        chart, data = prepared(key, {"rows": rows})
        for datum in data:
            assert render(chart, datum).startswith(b"\x89PNG")
            assert chart.caption(datum)
            drawn += 1
    assert drawn


def test_charts_are_written_with_their_captions(tmp_path: Path) -> None:
    found = records()
    paths = draw_charts(found["rows"], tmp_path / "report", found["calibration"], formats=("svg", "png"))
    assert all(path.exists() for path in paths)
    assert paths[-1].name == "charts.md"
    names = {path.name for path in paths}
    assert {"comm_time-all_reduce-cpu-gloo.png", "comm_time-all_reduce-cpu-gloo.svg"} <= names
    page = paths[-1].read_text()
    assert "(comm_busbw-all_reduce-cpu-gloo.png)" in page
    assert "Bus bandwidth of all_reduce" in page


def test_nothing_to_draw_writes_nothing(tmp_path: Path) -> None:
    assert draw_charts([row(status="timeout")], tmp_path) == ()
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_format_is_refused_before_drawing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'png'"):
        draw_charts(sweep(), tmp_path, formats=("pgn",))


def test_ticks_are_plain() -> None:
    assert [plain_number(x) for x in (0.0001, 0.01, 1.0, 50.0, 1000.0)] == [
        "0.0001",
        "0.01",
        "1",
        "50",
        "1\u2009000",
    ]
    assert [size_tick(x) for x in (512, 1024, 1.5 * MIB)] == ["512 B", "1 KiB", "1.5 MiB"]

"""Geometry of charts: ticks are round, values land where they should, bars share one scale."""

from __future__ import annotations

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from stepscope.report.page.plot import (
    INNER_HEIGHT,
    INNER_WIDTH,
    Axis,
    Bar,
    BarChart,
    Chart,
    Line,
    Mark,
    Reference,
    Segment,
    drawn,
    drawn_bars,
    tick_text,
    ticks,
)


def chart(*marks: Mark, x: Axis | None = None, y: Axis | None = None, **more: object) -> Chart:
    return Chart(
        key="c", title="t", caption="c", x=x or Axis(title="x"), y=y or Axis(title="y"),
        lines=(Line(name="a", slot=0, marks=marks),), **more,
    )  # fmt: skip


def points(of: Chart) -> list[list[float]]:
    return [point[:2] for point in json.loads(drawn(of).lines[0].points)]


@pytest.mark.parametrize(
    ("around", "axis", "expected"),
    [
        ((0.0, 1.0), Axis(title=""), [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        ((1.0, 4.0), Axis(title="", whole=True), [1.0, 2.0, 3.0, 4.0]),
        ((1.0, 64.0), Axis(title="", scale="log2"), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0][::2]),
        ((0.9, 12_000.0), Axis(title="", scale="log10"), [1.0, 10.0, 100.0, 1000.0, 10_000.0]),
        ((3.0, 40.0), Axis(title="", scale="log10"), [5.0, 10.0, 20.0]),
    ],
)
def test_ticks_are_round_values_inside_the_range(
    around: tuple[float, float], axis: Axis, expected: list[float]
) -> None:
    assert list(ticks(around, axis, about=5)) == pytest.approx(expected)


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_ticks_of_any_range_are_few_and_inside(low: float, length: float) -> None:
    assume(length > abs(low) * 1e-6)  # what floats resolve
    found = ticks((low, low + length), Axis(title=""), about=5)
    assert len(found) <= 12
    assert all(low - length * 1e-6 <= value <= low + length * (1 + 1e-6) for value in found)


def test_tick_texts() -> None:
    assert tick_text(65536, Axis(title="", unit="bytes")) == "64 KiB"
    assert tick_text(0.8, Axis(title="", unit="percent")) == "80 %"
    assert tick_text(0.30000000000000004, Axis(title="")) == "0.3"
    assert tick_text(250_000, Axis(title="")) == "250000"


def test_values_land_where_the_scale_puts_them() -> None:
    linear = points(chart(Mark(x=0, y=0, text=""), Mark(x=5, y=1, text=""), Mark(x=10, y=4, text="")))
    margin = 0.03 / 1.06 * INNER_WIDTH
    assert [x for x, _ in linear] == pytest.approx([margin, INNER_WIDTH / 2, INNER_WIDTH - margin], abs=0.1)
    assert linear[0][1] > linear[1][1] > linear[2][1]
    log = points(chart(*(Mark(x=x, y=1, text="") for x in (1, 4, 16)), x=Axis(title="", scale="log2")))
    assert [x for x, _ in log] == pytest.approx([margin, INNER_WIDTH / 2, INNER_WIDTH - margin], abs=0.1)


def test_whiskers_and_references_are_inside_the_plot() -> None:
    made = drawn(
        chart(
            Mark(x=1, y=2, low=0.5, high=9, text=""),
            references=(Reference(name="ideal", points=((1, 1), (8, 12))),),
        )
    )
    assert made.lines[0].whiskers.startswith("M")
    low, high = (float(part) for part in made.lines[0].whiskers.split(" ")[1].split("V"))
    assert 0 <= high < low <= INNER_HEIGHT
    assert made.references[0].name == "ideal"


@pytest.mark.parametrize("scale", ["linear", "log2", "log10"])
def test_one_point_alone_has_a_range(scale: str) -> None:
    axis = Axis(title="", scale=scale)  # type: ignore[arg-type]
    assert points(chart(Mark(x=4, y=7, text=""), x=axis, y=axis)) == [
        pytest.approx([INNER_WIDTH / 2, INNER_HEIGHT / 2], abs=1)
    ]


def test_bars_share_one_scale_and_failed_ones_have_none() -> None:
    made = drawn_bars(
        BarChart(
            key="b", title="", caption="", parts=("a", "b"), classes=("s0", "s1"),
            bars=(
                Bar(label="one", text="", segments=(Segment(slot=0, value=30, text=""), Segment(slot=1, value=10, text=""))),
                Bar(label="two", text="", segments=(Segment(slot=0, value=40, text=""),), low=35, high=80),
                Bar(label="three", text="", segments=(), failure="out of memory"),
            ),
        )
    )  # fmt: skip
    one, two, three = made.bars
    assert [(s.x, s.width) for s in one.segments] == [("0.00%", "37.50%"), ("37.50%", "12.50%")]
    assert two.whisker == ("43.75%", "100.00%")
    assert (three.segments, three.whisker) == ((), None)

"""Every view says one topic, is listed in the reference, and is loaded alone."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stepscope.report import trace_sections
from stepscope.report.views import views

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "report.md"


@pytest.mark.parametrize("key", views())
def test_a_view_has_a_table_or_a_chart(key: str) -> None:
    view = views()[key]
    assert view.key == key
    assert bool(view.title) == (view.charts is not None)
    assert view.table or view.tables or view.charts


def test_the_reference_lists_every_view_with_what_it_has() -> None:
    listed = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", REFERENCE.read_text(), re.M))
    found = {}
    for key in views():
        view = views()[key]
        has = ["table"] * (view.table is not None) + ["tables"] * (view.tables is not None)
        found[key] = ", ".join([*has, *(["charts"] * (view.charts is not None))])
    assert listed == found


def test_every_section_of_a_trace_is_a_view() -> None:
    assert {f"trace_{name}" for name in trace_sections.SECTIONS} <= set(views())

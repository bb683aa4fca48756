"""Charts as a test looks at them: what a view draws of records, and the values of one kind of mark."""

from __future__ import annotations

from typing import Any

from stepscope.report.vega import Chart
from stepscope.report.views import views


def drawn(key: str, **records: Any) -> tuple[Chart, ...]:
    """The charts of a view."""
    return views()[key].drawn(records)


def values(chart: Chart, mark: str) -> list[dict[str, Any]]:
    """What layers of this mark stand on, of all panels one after the other."""
    panels = chart.spec.get("hconcat") or chart.spec.get("vconcat") or [chart.spec]
    layers = (layer for panel in panels for layer in panel["layer"])
    return [value for layer in layers if layer["mark"]["type"] == mark for value in layer["data"]["values"]]


def names(chart: Chart) -> list[str]:
    """The series of its lines or areas, in the order of the layers."""
    layers = (layer["data"]["values"] for layer in chart.spec["layer"] if layer["mark"]["type"] in ("line", "area"))
    return list(dict.fromkeys(value["series"] for layer in layers for value in layer if "series" in value))

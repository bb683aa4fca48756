"""The charts of a job, as a notebook draws them."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import MissingError
from stepscope.report import charts, vega
from stepscope.report.render import picture
from stepscope.results.evidence import Evidence

MIME, SCHEMA = "application/vnd.vegalite.v5+json", "https://vega.github.io/schema/vega-lite/v5.json"
"""JupyterLab 4 and VS Code draw this version and no later one; descriptions are the same in it. Colab takes the picture."""

ENLARGED = 1.75
"""Pixels of a notebook for a point: the 7 points of a page cannot be read there."""

SHARP = 2
"""Pixels of the picture for one of a notebook."""

_LENGTH = re.compile(r"([wW]idth|height|[sS]ize|[pP]adding|Limit|[oO]ffset|Extent|d[xy]|thickness|spacing|value)$")


@record
class DrawnChart:
    """One chart: its description in Vega-Lite (``spec``), its caption, and its picture in a notebook or a file."""

    name: str
    title: str
    caption: str
    spec: Mapping[str, Any]

    def picture(self, kind: picture.Format = "png") -> bytes:
        """Return the picture: png, svg or pdf. Raises MissingError where none can be drawn."""
        return picture.pictures((json.dumps(self.spec), self.title, self.caption, (kind,)))[1]

    def save(self, path: str | Path) -> Path:
        """Write the picture in the format of the file's ending; return the file. Raises UsageError for another ending."""
        from stepscope.core.errors import UsageError
        from stepscope.core.words import unknown
        from stepscope.store.writer import write_bytes

        file = Path(path)
        kind = next((name for name in picture.FORMATS if file.suffix == f".{name}"), None)
        if kind is None:
            raise UsageError(unknown("chart format", file.suffix.lstrip("."), picture.FORMATS))
        write_bytes(file, self.picture(kind))
        return file

    def __repr__(self) -> str:
        return f"<chart {self.name}: {self.title}>"

    def _repr_mimebundle_(self, **_: object) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the description for notebooks that draw Vega-Lite, the picture for others, and the caption as text; then
        the picture's width."""
        spec = {**_enlarged(self.spec), "$schema": SCHEMA, "background": "white"}
        shown, how = {MIME: spec, "text/plain": self.caption}, {}
        with suppress(MissingError):  # the description stands alone where no picture can be drawn
            png = picture.for_screens(json.dumps(spec), scale=SHARP)
            shown["image/png"] = base64.b64encode(png).decode()
            how["image/png"] = {"width": int.from_bytes(png[16:20]) // SHARP}
        return shown, how


def _enlarged(part: Any) -> Any:
    """Return a description with all lengths enlarged; data and scales have none."""
    if isinstance(part, list):
        return [_enlarged(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {
        key: value * ENLARGED
        if isinstance(value, int | float) and _LENGTH.search(key)
        else value
        if key in ("data", "scale")
        else _enlarged(value)
        for key, value in part.items()
    }


def charts_of(evidence: Evidence, *, drop_epochs: int) -> dict[str, DrawnChart]:
    """Return the charts that a job's data allow by the names of their files."""
    drawn, _ = charts.charts_of(charts.records_of(evidence, drop_epochs=drop_epochs))
    return {
        chart.stem: DrawnChart(
            name=chart.stem,
            title=chart.full_title,
            caption=chart.caption,
            spec=json.loads(vega.resolved(json.dumps(chart.spec))),
        )
        for chart in drawn
    }

"""The charts of a job, as a notebook draws them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import MissingError
from stepscope.report import charts, vega
from stepscope.report.render import picture
from stepscope.results.evidence import Evidence

MIME = "application/vnd.vegalite.v6+json"


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

    def _repr_mimebundle_(self, **_: object) -> dict[str, Any]:
        """Return the description for notebooks that draw Vega-Lite, the picture for others, and the caption as text."""
        shown = {MIME: self.spec, "text/plain": self.caption}
        with suppress(MissingError):  # the description stands alone where no picture can be drawn
            shown["image/png"] = base64.b64encode(self.picture()).decode()
        return shown


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

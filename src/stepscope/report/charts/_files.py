"""All charts of some records as files, and a page with their captions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.report.charts import REGISTRY
from stepscope.report.charts._common import given
from stepscope.report.render.figure import FORMATS, render
from stepscope.store.writer import write_bytes

CAPTIONS = "charts.md"


def write_charts(
    records: Mapping[str, Any], folder: Path, *, formats: Sequence[str] = ("png",)
) -> tuple[Path, ...]:
    """``CHART-KEY.png`` for every figure that ``records`` allow, then ``charts.md``; nothing where there is none."""
    for name in formats:
        if name not in FORMATS:
            raise UsageError(unknown("chart format", name, FORMATS))
    wanted = [name for name in FORMATS if name in formats]
    written: list[Path] = []
    page = ["# Charts", ""]
    for key in REGISTRY.names():
        chart = REGISTRY.load(key)
        keywords = given(chart, records)
        for datum in () if keywords is None else chart.prepare(**keywords):
            paths = [folder / f"{chart.key}-{datum.key}.{name}" for name in wanted]
            for path, name in zip(paths, wanted, strict=True):
                write_bytes(path, render(chart, datum, format_=name))
            written += paths
            title = f"{chart.title}: {datum.title}"
            page += [f"## {title}", "", f"![{title}]({paths[0].name})", "", chart.caption(datum), ""]
    if written:
        write_bytes(folder / CAPTIONS, "\n".join(page).encode())
        written.append(folder / CAPTIONS)
    return tuple(written)

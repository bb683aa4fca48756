"""A dashboard for Grafana of what the Prometheus export writes: all runs, then each of them. PLACE: the file to import."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.records.parts import COLOURS, STEP
from stepscope.report.exports import Snapshot
from stepscope.report.exports.prometheus import ENDED, LAST_STEP, LATE, STEPS, metric
from stepscope.report.vega import PALETTE
from stepscope.results.figures import Better, Figure, figures_of
from stepscope.store.writer import write_bytes

SCHEMA = 39
"""Of the dashboard's JSON: that of Grafana 10; later ones raise it as they import it."""

OF_RUN = '{run=~"$run"}'
SOURCE = {"type": "prometheus", "uid": "${source}"}
UNITS = {"fraction": "percentunit", "bytes": "bytes"}
"""Unit of a figure -> Grafana's word for it."""

MOST_RANKS = 16
"""Of a job with more ranks those with the worst values are drawn."""

COLUMNS, WIDTH, HEIGHT = 24, 6, 8
"""Of Grafana's grid: its width, and the size of a panel."""

Panel = Mapping[str, Any]
Series = tuple[str, str]
"""Expression and legend."""

OVER_TIME: Panel = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
LATEST: Panel = {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal"}
STACKED: Panel = {"fillOpacity": 70, "stacking": {"mode": "normal", "group": "A"}}


class Dashboard:
    """The file; it is the same for every job."""

    def __init__(self, file: str, job: str) -> None:  # noqa: ARG002
        self._path = Path(file)
        if self._path.is_dir():
            raise UsageError(f"grafana:{file} is a folder", fix=f"name a file: grafana:{self._path / 'stepscope.json'}")

    def write(self, now: Snapshot, stretches: Sequence[Snapshot]) -> None:  # noqa: ARG002
        write_bytes(self._path, json.dumps(dashboard(), indent=1).encode())

    def close(self) -> str:
        return str(self._path)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it; which Prometheus it asks is chosen there."""
    runs = {
        "name": "run", "type": "query", "datasource": SOURCE, "query": f"label_values({STEPS}, run)", "refresh": 2,
        "sort": 1, "multi": True, "includeAll": True, "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip
    sources = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    return {
        "title": "stepscope", "uid": "stepscope", "tags": ["stepscope"], "schemaVersion": SCHEMA, "editable": True,
        "refresh": "30s", "time": {"from": "now-6h", "to": "now"}, "graphTooltip": 1,
        "annotations": {"list": []}, "templating": {"list": [sources, runs]},
        "panels": _placed_panels(({"title": "all runs"}, _of_all()), ({"title": "$run", "repeat": "run"}, _of_each())),
    }  # fmt: skip


def _of_all() -> Sequence[Panel]:
    goodput = figures_of("wall")["goodput_fraction"]
    since = f"time() - ({LAST_STEP}{OF_RUN} and on (run) {ENDED} == 0)"
    late = f"{LATE}{OF_RUN} == 1", "{{run}}: rank {{rank}} on {{host}}"
    return (
        _panel(goodput.title, "percentunit", (metric(goodput.key) + OF_RUN, "{{run}}"), about=goodput.help, kind="bargauge"),
        _panel("others wait for", "none", late, about="Ranks of the last look.", kind="stat",
               options={"textMode": "name"}, noValue="no rank"),
        _panel("since the last step", "s", (since, "{{run}}"), about="Of runs that have not ended.", kind="stat",
               noValue="no run continues"),
        _panel("steps per second", "none", (f"rate({STEPS}{OF_RUN}[$__rate_interval])", "{{run}}")),
    )  # fmt: skip


def _of_each() -> Sequence[Panel]:
    steps, hardware = figures_of("steps"), figures_of("memory", "hardware")
    step = steps["diary_step_ns"]
    parts = {f"diary_{part.column}": part for part in STEP if part.figure}
    colours = [
        (part.title, "color", {"mode": "fixed", "fixedColor": PALETTE[COLOURS[part.key]]}) for part in parts.values()
    ]
    own = f"{metric(step.key, 'rank')}{OF_RUN} * (1 - {metric('waiting_fraction', 'rank')}{OF_RUN})"
    return (
        _panel(
            "parts of a step", "s", *_job_series({key: steps[key] for key in (*parts, step.key)}),
            about=f"Means of all steps so far, stacked; the line: {step.help}.",
            overrides=[*colours, (step.title, "custom.stacking", {"mode": "none"})], custom=STACKED,
        ),
        _panel("shares of a step", "percentunit", *_job_series(figures_of("shares"))),
        _panel("where the wall time went", "percentunit", *_job_series(figures_of("wall"), " > 0"), custom=STACKED),
        _panel("a rank's step without waiting", "s", _worst(own), about="The others wait for the highest."),
        *(
            _panel(figure.title, UNITS[figure.unit], _worst(metric(key, "rank") + OF_RUN, figure.better), about=figure.help)
            for key, figure in hardware.items() if figure.unit != "count"
        ),
        _panel(
            "errors and dropped packets", "none",
            *_job_series({key: figure for key, figure in hardware.items() if figure.unit == "count"}),
            about="Of all GPUs and ports of the job, since their first samples.",
        ),
    )  # fmt: skip


def _job_series(figures: Mapping[str, Figure], where: str = "") -> Sequence[Series]:
    return [(f"{metric(key)}{OF_RUN}{where}", figure.title) for key, figure in figures.items()]


def _worst(expression: str, better: Better = "low") -> Series:
    """Return the ranks that have the worst values."""
    worst = "bottomk" if better == "high" else "topk"
    return f"{worst}({MOST_RANKS}, {expression})", "rank {{rank}} on {{host}}"


def _panel(
    title: str,
    unit: str,
    *series: Series,
    about: str = "",
    kind: str = "timeseries",
    options: Panel = MappingProxyType({}),
    overrides: Sequence[tuple[str, str, Any]] = (),
    **defaults: Any,
) -> Panel:
    """Return a panel. overrides: legend, property and its value. defaults: of all its series, as Grafana names them."""
    latest = kind != "timeseries"
    most = {"max": 1} if unit == "percentunit" else {}
    return {
        "type": kind, "title": title, "description": about, "datasource": SOURCE,
        "options": {**(LATEST if latest else OVER_TIME), **options},
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend,
             "instant": latest, "range": not latest}
            for at, (expression, legend) in enumerate(series)
        ],
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, **most, **defaults},
            "overrides": [
                {"matcher": {"id": "byName", "options": name}, "properties": [{"id": key, "value": value}]}
                for name, key, value in overrides
            ],
        },
    }  # fmt: skip


def _placed_panels(*rows: tuple[Panel, Sequence[Panel]]) -> list[Panel]:
    """Number panels and place them on the grid. rows: each row itself, and its panels."""
    placed: list[Panel] = []
    y = 0
    for row, panels in rows:
        place = {"x": 0, "y": y, "w": COLUMNS, "h": 1}
        placed.append({"type": "row", "collapsed": False, "panels": [], "gridPos": place, **row})
        for at, panel in enumerate(panels):
            down, x = divmod(at * WIDTH, COLUMNS)
            placed.append({"gridPos": {"x": x, "y": y + 1 + down * HEIGHT, "w": WIDTH, "h": HEIGHT}, **panel})
        y = placed[-1]["gridPos"]["y"] + HEIGHT
    return [{"id": number, **panel} for number, panel in enumerate(placed, 1)]


EXPORTER = Dashboard

"""A dashboard for Grafana of what the Prometheus export writes: all runs, then each of them. PLACE: the file to import."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.records.parts import COLOURS, STEP
from stepscope.report.exports import Snapshot
from stepscope.report.exports.prometheus import ENDED, LAST_STEP, LATE, STEPS, metric
from stepscope.report.vega import PALETTE
from stepscope.results.figures import Better, figures_of
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

STACK = "custom.stacking"

Panel = dict[str, Any]
Series = tuple[str, str]
"""Expression and legend."""


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
        "panels": _placed({"title": "all runs"}, _of_all(), {"title": "$run", "repeat": "run"}, _of_each()),
    }  # fmt: skip


def _of_all() -> Sequence[Panel]:
    goodput = figures_of("wall")["goodput_fraction"]
    since = f"time() - ({LAST_STEP}{OF_RUN} and on (run) {ENDED} == 0)"
    late = f"{LATE}{OF_RUN} == 1", "{{run}}: rank {{rank}} on {{host}}"
    return (
        _now("bargauge", goodput.title, "percentunit", (metric(goodput.key) + OF_RUN, "{{run}}"), goodput.help),
        _now("stat", "others wait for", "none", late, "Ranks of the last look.", "no rank", textMode="name"),
        _now(
            "stat", "since the last step", "s", (since, "{{run}}"), "Of runs that have not ended.", "no run continues"
        ),
        _over_time("steps per second", "none", [(f"rate({STEPS}{OF_RUN}[$__rate_interval])", "{{run}}")]),
    )


def _of_each() -> Sequence[Panel]:
    steps, shares, wall = figures_of("steps"), figures_of("shares"), figures_of("wall")
    hardware = figures_of("memory", "hardware")
    step = steps["diary_step_ns"]
    parts = {f"diary_{part.column}": part for part in STEP if part.figure}
    colours = [
        (part.title, "color", {"mode": "fixed", "fixedColor": PALETTE[COLOURS[part.key]]}) for part in parts.values()
    ]
    own = f"{metric(step.key, 'rank')}{OF_RUN} * (1 - {metric('waiting_fraction', 'rank')}{OF_RUN})"
    return (
        _over_time(
            "parts of a step", "s", [(metric(key) + OF_RUN, steps[key].title) for key in (*parts, step.key)],
            f"Means of all steps so far, stacked; the line: {step.help}.",
            stacked=True, overrides=[*colours, (step.title, STACK, {"mode": "none"})],
        ),
        _over_time("shares of a step", "percentunit", [(metric(key) + OF_RUN, shares[key].title) for key in shares]),
        _over_time(
            "where the wall time went", "percentunit",
            [(f"{metric(key)}{OF_RUN} > 0", wall[key].title) for key in wall], stacked=True,
        ),
        _over_time("a rank's step without waiting", "s", [_ranks(own)], "The others wait for the highest."),
        *(
            _over_time(figure.title, UNITS[figure.unit], [_ranks(metric(key, "rank") + OF_RUN, figure.better)], figure.help)
            for key, figure in hardware.items() if figure.unit != "count"
        ),
        _over_time(
            "errors and dropped packets", "none",
            [(metric(key) + OF_RUN, figure.title) for key, figure in hardware.items() if figure.unit == "count"],
            "Of all GPUs and ports of the job, since their first samples.",
        ),
    )  # fmt: skip


def _ranks(expression: str, better: Better = "low") -> Series:
    """Return the ranks that have the worst values."""
    worst = "bottomk" if better == "high" else "topk"
    return f"{worst}({MOST_RANKS}, {expression})", "rank {{rank}} on {{host}}"


def _over_time(
    title: str,
    unit: str,
    series: Sequence[Series],
    about: str = "",
    *,
    stacked: bool = False,
    overrides: Sequence[tuple[str, str, Any]] = (),
) -> Panel:
    """Return a chart over time. overrides: legend, property and its value."""
    return _panel(
        "timeseries", title, unit, series, about,
        {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        {"custom": {"fillOpacity": 70, "stacking": {"mode": "normal", "group": "A"}}} if stacked else {},
        overrides,
    )  # fmt: skip


def _now(kind: str, title: str, unit: str, series: Series, about: str, empty: str = "", **options: Any) -> Panel:
    """Return a panel of the latest values. empty: what it says where there is none."""
    latest = {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal"}
    return _panel(kind, title, unit, [series], about, latest | options, {"noValue": empty} if empty else {})


def _panel(
    kind: str,
    title: str,
    unit: str,
    series: Sequence[Series],
    about: str,
    options: Panel,
    drawn: Panel,
    overrides: Sequence[tuple[str, str, Any]] = (),
) -> Panel:
    now = kind != "timeseries"
    return {
        "type": kind, "title": title, "description": about, "datasource": SOURCE, "options": options,
        "targets": [
            {"refId": chr(ord("A") + at), "datasource": SOURCE, "expr": expression, "legendFormat": legend,
             "instant": now, "range": not now}
            for at, (expression, legend) in enumerate(series)
        ],
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, **({"max": 1} if unit == "percentunit" else {}), **drawn},
            "overrides": [
                {"matcher": {"id": "byName", "options": name}, "properties": [{"id": key, "value": value}]}
                for name, key, value in overrides
            ],
        },
    }  # fmt: skip


def _placed(*rows: Any) -> list[Panel]:
    """Number panels and place them on the grid. rows: of each row itself and its panels, in turn."""
    placed: list[Panel] = []
    y = 0
    for row, panels in zip(rows[::2], rows[1::2], strict=True):
        placed.append({"type": "row", "collapsed": False, "panels": [], "gridPos": _at(0, y, COLUMNS, 1), **row})
        y += 1
        for at, panel in enumerate(panels):
            x, down = at * WIDTH % COLUMNS, at * WIDTH // COLUMNS
            placed.append({"gridPos": _at(x, y + down * HEIGHT, WIDTH, HEIGHT), **panel})
        y += (1 + (len(panels) - 1) * WIDTH // COLUMNS) * HEIGHT
    return [{"id": number, **panel} for number, panel in enumerate(placed, 1)]


def _at(x: int, y: int, width: int, height: int) -> Panel:
    return {"x": x, "y": y, "w": width, "h": height}


EXPORTER = Dashboard

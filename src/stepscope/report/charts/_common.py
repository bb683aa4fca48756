"""What a chart is, and lines over message sizes that several charts draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from stepscope.predict.curve_shape import curve_time_ns
from stepscope.records.calibration import Calibration, CollectiveFit
from stepscope.records.comm import CommRow
from stepscope.results.comm_labels import device_label, op_label, ranks_label, sweep_names, sweeps

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_LINES = 7
"""Lines of one chart: as many as there are colours that everybody tells apart."""


CURVE_STEPS = 48
"""Steps of a fitted curve between the smallest and the largest size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A registered chart. One file may draw several figures: ``prepare`` gives one frozen datum for each.

    needs: keywords of ``prepare`` without which there is nothing to draw (``rows``, ``calibration``); wants: those that
    it uses where they are there. prepare: pure; data have ``key`` (part of a file name) and ``title``. draw: one datum
    on an empty matplotlib ``Axes``. caption: what is seen, in sentences that need no chart. size_inches: (width, height).
    stem: name of a datum's file without its ending; None: ``KEY-DATUM``.
    """

    key: str
    title: str
    needs: tuple[str, ...]
    prepare: Callable[..., tuple[Any, ...]]
    draw: Callable[[Any, Axes], None]
    caption: Callable[[Any], str]
    wants: tuple[str, ...] = ()
    size_inches: Callable[[Any], tuple[float, float]]
    stem: Callable[[Any], str] | None = None

    def file_stem(self, datum: Any) -> str:
        """Name of the file of one datum, without its ending."""
        return f"{self.key}-{datum.key}" if self.stem is None else self.stem(datum)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One measured size. fast, slow: what 9 of 10 calls lie between; None: not known."""

    size_bytes: int
    value: float
    fast: float | None
    slow: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeLine:
    """One sweep. fitted: (size, value) along the fitted curve; empty: none is given. ranks: names its colour."""

    name: str
    points: tuple[Point, ...]
    fitted: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeChart:
    """Lines of one operation over size. peak: of the link in one direction, bytes/s; None: not known, or of no use here.

    means: points are means over the calls, as imported; False: medians.
    """

    key: str
    title: str
    lines: tuple[SizeLine, ...]
    pacing: str
    peak: float | None = None
    means: bool = False


Value = Callable[[CommRow, float], float | None]
"""What is drawn of a row for one time in ns (of its median, fastest, slowest call)."""


def size_charts(
    rows: Sequence[CommRow], calibration: Calibration | None, value: Value, *, with_peak: bool
) -> tuple[SizeChart, ...]:
    """One chart for each operation and device; more where its sweeps are more than :data:`MAX_LINES`."""
    drawn = [row for row in rows if row.kind == "collective" and row.status == "ok" and row.time_ns and row.size_bytes]
    drawn = [row for row in drawn if row.correct is not False and value(row, row.time_ns or 0.0)]
    groups: dict[tuple[str, str], list[list[CommRow]]] = {}
    for sweep in sweeps(drawn).values():
        groups.setdefault((op_label(sweep[0]), device_label(sweep[0])), []).append(sweep)
    charts = []
    for (op, device), found in groups.items():
        called = sweep_names([row for sweep in found for row in sweep], always_ranks=False)
        worlds = {ranks_label(sweep[0]) for sweep in found}
        ranks = f", {worlds.pop()}" if len(worlds) == 1 else ""
        parts = [found[i : i + MAX_LINES] for i in range(0, len(found), MAX_LINES)]
        for number, part in enumerate(parts, start=1):
            several = f" ({number} of {len(parts)})" if len(parts) > 1 else ""
            charts.append(
                SizeChart(
                    key=_file_part(f"{op}-{device}" + (f"-{number}" if several else "")),
                    title=f"{op}, {device}{ranks}{several}",
                    lines=tuple(
                        _line(sweep, called(sweep[0]) or ranks_label(sweep[0]), calibration, value) for sweep in part
                    ),
                    pacing=_pacing(part),
                    means=all(row.time_ns_median is None for sweep in part for row in sweep),
                    peak=_peak(part) if with_peak else None,
                )
            )
    return tuple(charts)


def _line(sweep: Sequence[CommRow], name: str, calibration: Calibration | None, value: Value) -> SizeLine:
    ordered = sorted(sweep, key=lambda row: row.size_bytes or 0)
    points = tuple(
        Point(
            size_bytes=row.size_bytes or 0,
            value=value(row, row.time_ns or 0.0) or 0.0,
            fast=None if row.time_ns_min is None else value(row, row.time_ns_min),
            slow=None if row.time_ns_p90 is None else value(row, row.time_ns_p90),
        )
        for row in ordered
    )
    fit = None if calibration is None else fit_of(ordered[0], calibration)
    return SizeLine(name=name, points=points, fitted=() if fit is None else _fitted(ordered, fit, value))


def fit_of(row: CommRow, calibration: Calibration) -> CollectiveFit | None:
    """The fit that holds for a row's sweep; None where there is none or several (placements) would do."""
    wanted = (
        row.op,
        row.dtype,
        row.in_place,
        row.pattern,
        row.world_size,
        row.backend,
        row.device,
        row.network,
    )
    found = [
        f
        for f in calibration.fits
        if (f.op, f.dtype, f.in_place, f.pattern, f.world_size, f.backend, f.device, f.network) == wanted
    ]
    plain = row.mode == "blocking" and row.in_flight == 1 and not row.env
    return found[0] if plain and len(found) == 1 else None


def _fitted(sweep: Sequence[CommRow], fit: CollectiveFit, value: Value) -> tuple[tuple[float, float], ...]:
    """The curve from the smallest to the largest size measured, at its knots and evenly between."""
    low, high = sweep[0].size_bytes or 1, sweep[-1].size_bytes or 1
    even = {round(low * (high / low) ** (n / CURVE_STEPS)) for n in range(CURVE_STEPS + 1)}
    knots = {knot.size_bytes for knot in fit.curve.knots if low <= knot.size_bytes <= high}
    at = [(size, curve_time_ns(fit.curve, size)) for size in sorted(even | knots)]
    return tuple(
        (float(size), drawn) for size, time in at if (drawn := value(_sized(sweep[0], size), time)) is not None
    )


def _sized(row: CommRow, size_bytes: int) -> CommRow:
    """``row`` as it would be at another size: same factor between time, algbw and busbw."""
    factor = (row.busbw_bytes_per_s or 0.0) * (row.time_ns or 0.0) / (row.size_bytes or 1)
    return replace(row, size_bytes=size_bytes, busbw_bytes_per_s=factor * size_bytes, time_ns_median=1.0)


def _peak(part: Sequence[Sequence[CommRow]]) -> float | None:
    peaks = {row.link_peak_bytes_per_s for sweep in part for row in sweep}
    return peaks.pop() if len(peaks) == 1 else None


def _pacing(part: Sequence[Sequence[CommRow]]) -> str:
    paced = {row.pacing for sweep in part for row in sweep}
    if len(paced) > 1:
        return "with or without an untimed barrier before each call"
    return "an untimed barrier before each call" if "barrier" in paced else "calls back to back"


def _file_part(text: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in text)


def given(chart: Chart, records: Mapping[str, Any]) -> dict[str, Any] | None:
    """The keywords for ``chart.prepare`` out of ``records``; None where one that it needs is missing."""
    if any(records.get(name) is None for name in chart.needs):
        return None
    return {n: records[n] for n in (*chart.needs, *chart.wants) if records.get(n) is not None}

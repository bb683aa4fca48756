"""Bus bandwidth and time of collectives over message size, one line a sweep, with fitted curve and the link's peak."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.units import format_bandwidth, format_duration, format_number, format_percent
from stepscope.core.words import counted, grouped
from stepscope.predict.curve_shape import curve_time_ns
from stepscope.records.calibration import Calibration, CollectiveFit
from stepscope.records.comm import CommRow
from stepscope.report import vega
from stepscope.report.names import file_part
from stepscope.report.vega import Chart, Spec
from stepscope.report.views import View
from stepscope.results.comm_facts import above_peak, best_size
from stepscope.results.labels import comm_ranks_label, device_label, op_label, sweep_names, sweeps

CURVE_STEPS = 48
"""Steps of a fitted curve between the smallest and the largest size."""


@record
class MeasuredSize:
    """One measured size. fast, slow: what 9 of 10 calls lie between; None: not known."""

    size_bytes: int
    value: float
    fast: float | None
    slow: float | None


@record
class SizeLine:
    """One sweep. fitted: (size, value) along the fitted curve; empty: none is given. best: what a sweep is judged by.

    above: why that is faster than the link; None: it is not.
    """

    name: str
    points: tuple[MeasuredSize, ...]
    best: MeasuredSize
    above: str | None = None
    fitted: tuple[tuple[float, float], ...] = ()


Value = Callable[[CommRow, float], float | None]
"""What is drawn of a row for one time in ns (of its median, fastest, slowest call)."""

Sweeps = Sequence[Sequence[CommRow]]


def size_charts(
    rows: Sequence[CommRow],
    calibration: Calibration | None,
    value: Value,
    *,
    what: str,
    label: str,
    scale: float,
    more: Callable[[Sequence[SizeLine], float | None], str],
    with_peak: bool = False,
) -> Iterator[Chart]:
    """Yield one chart of a figure over message size for each operation and device; more where its sweeps are too many.

    what: its name in captions, which ``more`` ends, of lines and the link's peak; label: with its unit, of ``scale``.
    """
    drawn = [row for row in rows if row.kind == "collective" and row.status == "ok" and row.time_ns and row.size_bytes]
    drawn = [row for row in drawn if row.correct is not False and value(row, row.time_ns or 0.0)]
    groups = grouped(sweeps(drawn).values(), lambda sweep: (op_label(sweep[0]), device_label(sweep[0])))
    for (op, device), group in groups.items():
        called = sweep_names([row for sweep in group for row in sweep], always_ranks=False)
        worlds = {comm_ranks_label(sweep[0]) for sweep in group}
        ranks = f", {worlds.pop()}" if len(worlds) == 1 else ""
        parts = [group[i : i + vega.MAX_LINES] for i in range(0, len(group), vega.MAX_LINES)]
        for number, part in enumerate(parts, start=1):
            several = f" ({number} of {len(parts)})" if len(parts) > 1 else ""
            title = f"{op}, {device}{ranks}{several}"
            lines = [
                _size_line(sweep, called(sweep[0]) or comm_ranks_label(sweep[0]), calibration, value) for sweep in part
            ]
            peak = _common_peak(part) if with_peak else None
            yield Chart(
                file_part(f"{op}-{device}" + (f"-{number}" if several else "")),
                title,
                _sizes_caption(f"{what} of {title}", part, lines) + more(lines, peak),
                size_chart(title, lines, peak, label=label, scale=scale),
            )


def _size_line(sweep: Sequence[CommRow], name: str, calibration: Calibration | None, value: Value) -> SizeLine:
    """Return the points of a sweep with their curve. value: time, or busbw."""
    ordered = sorted(sweep, key=lambda row: row.size_bytes or 0)
    points = {
        id(row): MeasuredSize(
            size_bytes=row.size_bytes or 0,
            value=value(row, row.time_ns or 0.0) or 0.0,
            fast=None if row.time_ns_min is None else value(row, row.time_ns_min),
            slow=None if row.time_ns_p90 is None else value(row, row.time_ns_p90),
        )
        for row in ordered
    }
    fit = None if calibration is None else fit_of(ordered[0], calibration)
    best = best_size(sweep) or ordered[-1]
    return SizeLine(
        name=name,
        points=tuple(points.values()),
        best=points[id(best)],
        above=above_peak(best, best.link_peak_bytes_per_s),
        fitted=() if fit is None else _fitted_points(ordered, fit, value),
    )


def fit_of(row: CommRow, calibration: Calibration) -> CollectiveFit | None:
    """Return the fit that holds for a row's sweep; None where there is none or several (placements) would do."""
    wanted = (row.op, row.dtype, row.in_place, row.pattern, row.world_size, row.backend, row.device, row.network)
    fits = [
        f
        for f in calibration.fits
        if (f.op, f.dtype, f.in_place, f.pattern, f.world_size, f.backend, f.device, f.network) == wanted
    ]
    plain = row.mode == "blocking" and row.in_flight == 1 and not row.env
    return fits[0] if plain and len(fits) == 1 else None


def _fitted_points(sweep: Sequence[CommRow], fit: CollectiveFit, value: Value) -> tuple[tuple[float, float], ...]:
    """Return the curve from the smallest to the largest size measured, at its knots and evenly between."""
    low, high = sweep[0].size_bytes or 1, sweep[-1].size_bytes or 1
    even = {round(low * (high / low) ** (n / CURVE_STEPS)) for n in range(CURVE_STEPS + 1)}
    knots = {knot.size_bytes for knot in fit.curve.knots if low <= knot.size_bytes <= high}
    at = [(size, curve_time_ns(fit.curve, size)) for size in sorted(even | knots)]
    return tuple(
        (float(size), drawn) for size, time in at if (drawn := value(_row_at_size(sweep[0], size), time)) is not None
    )


def _row_at_size(row: CommRow, size_bytes: int) -> CommRow:
    """Return ``row`` as it would be at another size: same factor between time, algbw and busbw."""
    factor = (row.busbw_bytes_per_s or 0.0) * (row.time_ns or 0.0) / (row.size_bytes or 1)
    return replace(row, size_bytes=size_bytes, busbw_bytes_per_s=factor * size_bytes, time_ns_median=1.0)


def _common_peak(part: Sweeps) -> float | None:
    peaks = {row.link_peak_bytes_per_s for sweep in part for row in sweep}
    return peaks.pop() if len(peaks) == 1 else None


def _pacing_text(part: Sweeps) -> str:
    paced = {row.pacing for sweep in part for row in sweep}
    if len(paced) > 1:
        return "with or without an untimed barrier before each call"
    return "an untimed barrier before each call" if "barrier" in paced else "calls back to back"


FITTED = "fitted curve"


def size_chart(title: str, lines: Sequence[SizeLine], peak: float | None, *, label: str, scale: float) -> Spec:
    """Draw all ``lines``, values times ``scale``; ``label`` names the value and its unit. peak: of the link."""
    names = vega.apart([line.name for line in lines])
    unit = label.partition("(")[2].rstrip(")")
    points: list[dict[str, Any]] = []
    bands: list[dict[str, Any]] = []
    fitted: list[dict[str, Any]] = []
    for line, name in zip(lines, names, strict=True):
        for p in line.points:
            sentence = f"{name}, {vega.size_tick(p.size_bytes)}: {format_number(p.value * scale)} {unit}"
            points.append({"size": p.size_bytes, "y": vega.sig(p.value * scale), "series": name, "said": sentence})
            if p.fast is not None and p.slow is not None:
                low, high = sorted((p.fast * scale, p.slow * scale))
                bands.append({"size": p.size_bytes, "low": vega.sig(low), "high": vega.sig(high), "series": name})
        fitted += [{"size": size, "y": value * scale, "of": name} for size, value in line.fitted]
    shown = [*names, FITTED] if fitted else names
    hue = vega.by_series(shown, (*vega.COLORS[: len(names)], vega.INK))
    layers = []
    if peak is not None:
        level = [{"y": peak * scale, "text": f"link peak {format_number(peak * scale)} GB/s"}]
        layers.append(vega.layer("rule", level, y="y", x=None, color=vega.FAINT, strokeDash=[5, 2], strokeWidth=0.9))
        layers.append(vega.layer("text", level, y="y", x=2, text="text", color=vega.FAINT, align="left", dy=-5))
    if bands:
        layers.append(vega.layer("area", bands, y="low", y2="high", color=hue, opacity=0.18))
    layers.append(vega.layer("line", vega.unsaid(points), color=hue, strokeWidth=1.3))
    if fitted:
        curve = {"datum": FITTED, **{k: v for k, v in hue.items() if k != "field"}}
        layers.append(vega.layer("line", fitted, detail="of", color=curve, strokeWidth=0.9, strokeDash=[3, 2]))
    layers.append(vega.dots(points, color=hue, shape=vega.shape_by_series(shown)))
    reach = [point["y"] for point in points] + [band[end] for band in bands for end in ("low", "high")]
    reach += [] if peak is None else [vega.sig(peak * scale * 1.3)]
    return vega.chart(
        title,
        *layers,
        width=vega.COLUMN,
        height=140,
        x=vega.size_axis("size", [point["size"] for point in points]),
        y=vega.log_axis("y", label, [value for value in reach if value > 0]),
    )


def _sizes_caption(of: str, part: Sweeps, lines: Sequence[SizeLine]) -> str:
    """Say which operation, sizes and sweeps these are, what points and bands are."""
    points = [p for line in lines for p in line.points]
    sizes = [p.size_bytes for p in points]
    ranged = " to ".join(dict.fromkeys((vega.size_tick(min(sizes)), vega.size_tick(max(sizes)))))
    names = "; ".join(line.name for line in lines)
    parts = [
        f"{of} over message size, {ranged}; {counted(len(lines), 'line')}: {names}.",
        "Points: means over the calls, as imported."
        if all(row.time_ns_median is None for sweep in part for row in sweep)
        else f"Points: median over the calls, each as long as on its slowest rank; {_pacing_text(part)}.",
    ]
    if any(p.fast is not None and p.slow is not None for p in points):
        parts.append("Bands: from the fastest call to the 90th percentile of the calls.")
    if any(line.fitted for line in lines):
        parts.append("Dashed: the calibrated curve.")
    return " ".join(parts)


def _busbw_at(row: CommRow, time_ns: float) -> float | None:
    """Return busbw in bytes/s; of a fast call's time it is high, so ``fast`` lies above ``slow``."""
    if row.busbw_bytes_per_s is None or row.time_ns is None or not time_ns:
        return None
    return row.busbw_bytes_per_s * row.time_ns / time_ns


def _best_text(lines: Sequence[SizeLine], peak: float | None) -> str:
    """Say the best rate of each sweep, and its share of the peak."""
    best = []
    for line in lines[:4]:
        rate = f"{line.name}: {format_bandwidth(line.best.value)} at {vega.size_tick(line.best.size_bytes)}"
        share = "" if peak is None else f", {_of_link(line, peak)}"
        best.append(f"{rate}{share}")
    grey = "" if peak is None else f" Grey: peak of the link in one direction, {format_bandwidth(peak)}."
    return (
        f"{grey} Best: {'; '.join(best)}. busbw is size / time times the"
        " operation's factor, so that operations and numbers of ranks compare with one link."
    )


def _of_link(line: SizeLine, peak: float) -> str:
    share = f"{format_percent(line.best.value / peak)} of the link"
    return share if line.above is None else f"faster than the link ({line.above})"


def _ends_text(lines: Sequence[SizeLine], _: float | None) -> str:
    ends = [
        f"{line.name}: {format_duration(line.points[0].value)} to {format_duration(line.points[-1].value)}"
        for line in lines[:4]
    ]
    return f" From the smallest to the largest size: {'; '.join(ends)}."


def busbw_charts(rows: Sequence[CommRow], calibration: Calibration | None = None) -> Iterator[Chart]:
    """Yield charts of the bus bandwidth, with the link's peak."""
    what = "Bus bandwidth"
    return size_charts(
        rows, calibration, _busbw_at, what=what, label="busbw (GB/s)", scale=1e-9, more=_best_text, with_peak=True
    )


def time_charts(rows: Sequence[CommRow], calibration: Calibration | None = None) -> Iterator[Chart]:
    """Yield charts of the time of a call."""
    what, label = "Time per call", "time per call (µs)"
    return size_charts(rows, calibration, lambda _, ns: ns, what=what, label=label, scale=1e-3, more=_ends_text)


VIEWS = (
    View("comm_busbw", "Bus bandwidth against size", charts=busbw_charts),
    View("comm_time", "Time against size", charts=time_charts),
)

"""Predicted times of collectives, and the calibration that they come from: predicted over measured time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepscope.core.units import format_duration, format_percent, format_plus_minus
from stepscope.core.words import counted
from stepscope.predict.collectives.costs import Predicted
from stepscope.predict.line_fit import link_rate_bytes_per_s
from stepscope.records.calibration import Calibration, CollectiveFit, Curve, Line, SizeError
from stepscope.report import vega
from stepscope.report.names import file_part
from stepscope.report.table import (
    UNKNOWN,
    Column,
    Format,
    Table,
    Tone,
    Value,
    bandwidth,
    binary_size,
    duration,
    identity_column,
    judged,
    lead_column,
    percent,
    tabled,
    unknown,
    whole,
    wording,
)
from stepscope.report.vega import Chart, Spec
from stepscope.report.views import View


def build_sizes(predictions: Mapping[int, Predicted], *, title: str) -> Table:
    """Return the table: one row a size."""
    notes = dict.fromkeys(note for predicted in predictions.values() for note in predicted.notes)
    return tabled(
        "predicted_sizes",
        title,
        predictions.items(),
        lead_column("size_bytes", "size", "0", binary_size),
        Column("time_ns", "time", "1.time_ns", duration),
        Column(
            "interval_ns",
            "80% interval",
            lambda item: Value(interval_text(item[1]), f"{item[1].low_ns:.0f} {item[1].high_ns:.0f}"),
            whole,
            unit="ns",
        ),
        Column("busbw_bytes_per_s", "busbw", "1.busbw_bytes_per_s", bandwidth, unit="bytes/s"),
        Column("algorithm", "algorithm", "1.algorithm"),
        Column("protocol", "protocol", "1.protocol"),
        Column("next", "next best", lambda item: _next_best(item[1]), drop=1),
        notes=tuple(notes),
    )


def _next_best(predicted: Predicted) -> str | None:
    second = next((a for a in predicted.alternatives if a.offered), None)
    return None if second is None else f"{second.algorithm}/{second.protocol} {format_duration(second.time_ns)}"


def interval_text(predicted: Predicted) -> str:
    """Write ``280 us to 420 us``."""
    return f"{format_duration(predicted.low_ns)} to {format_duration(predicted.high_ns)}"


def build_alternatives(predicted: Predicted) -> Table:
    """Return the table: the chosen way first, then the others, fastest first."""
    ways: list[tuple[str, str, float, str, Tone]] = [
        (predicted.algorithm, predicted.protocol or "", predicted.time_ns, "chosen", "good")
    ]
    for other in predicted.alternatives:
        word = "offered" if other.offered else "for comparison"
        ways.append((other.algorithm, other.protocol, other.time_ns, word, "plain" if other.offered else "dim"))

    def ratio(time_ns: float) -> float:
        return time_ns / predicted.time_ns if predicted.time_ns else 1.0

    return tabled(
        "predicted_alternatives",
        "",
        ways,
        lead_column("algorithm", "algorithm", lambda way: wording(way[0], tone=way[4])),
        lead_column("protocol", "protocol", lambda way: wording(way[1], tone=way[4])),
        Column("time_ns", "time", lambda way: duration(way[2], tone=way[4]), duration),
        Column("ratio", "x chosen", lambda way: Format("{:.2f}".format)(ratio(way[2]), tone=way[4]), whole),
        Column("status", "", lambda way: wording(way[3], tone=way[4])),
    )


NEAR = 1.1
"""A straight line within this factor of every measured time is not said to fail anywhere."""


def calibration_charts(calibration: Calibration) -> Iterator[Chart]:
    """Yield one chart a fit that says how far off it is at each size; two fits are never called the same."""
    fits = [fit for fit in calibration.fits if fit.errors]
    titles = [_fit_title(fit) for fit in fits]
    for n, (fit, title) in enumerate(zip(fits, titles, strict=True)):
        several = f"-{titles[:n].count(title) + 1}" if titles.count(title) > 1 else ""
        points = sorted(fit.errors, key=lambda e: e.measured_ns)
        yield Chart(_fit_key(fit) + several, title, _fit_caption(title, fit, points), _fit_chart(title, fit, points))


def _fit_chart(title: str, fit: CollectiveFit, points: Sequence[SizeError]) -> Spec:
    """Draw predicted over measured time above; below their ratio, half and double as far away."""
    measured = [p.measured_ns / 1e3 for p in points]
    ends = [vega.sig(min(measured) / 1.3), vega.sig(max(measured) * 1.3)]
    line, curve = (
        f"{name}: mean error {mean}, largest {largest}"
        for name, (mean, largest) in (("straight line", _errors_text(fit.line)), ("curve", _errors_text(fit.curve)))
    )
    rows: list[dict[str, Any]] = [
        {
            "measured": vega.sig(p.measured_ns / 1e3),
            "predicted": vega.sig(time / 1e3),
            "ratio": vega.sig(time / p.measured_ns),
            "series": name,
            "said": f"{vega.size_tick(p.size_bytes)}, {name.partition(':')[0]}: {format_duration(time)} predicted,"
            f" {format_duration(p.measured_ns)} measured",
        }
        for p in points
        for name, time in ((line, p.line_ns), (curve, p.curve_ns))
    ]
    hue = vega.by_series((line, curve), (vega.COLORS[1], vega.COLORS[0]))
    hue["legend"] = {"title": None, "columns": 1}
    shape = vega.shape_by_series((line, curve))
    shape["scale"] = {"domain": [line, curve], "range": ["square", "circle"]}
    across = vega.log_axis("measured", "measured time per call (µs)", ends)

    def panel(field: str, y: Spec, height: int, x: Spec, same: Sequence[float]) -> Spec:
        """Return one panel of measured against fitted times."""
        exact = [{"measured": x_, field: y_} for x_, y_ in zip(ends, same, strict=True)]
        layers = [
            vega.layer("line", exact, y=field, color=vega.FAINT, strokeWidth=0.9),
            vega.layer("line", vega.unsaid(rows), y=field, color=hue, strokeWidth=0.9),
            vega.dots(rows, y=field, color=hue, shape=shape),
        ]
        if (band := fit.curve.cross_validated_error) is not None:
            around = [{**row, "low": row[field] / (1 + band), "high": row[field] * (1 + band)} for row in exact]
            look = {"color": vega.COLORS[0], "opacity": 0.15, "clip": True}
            layers.insert(0, vega.layer("area", around, y="low", y2="high", **look))
        return {"width": vega.COLUMN - 60, "height": height, "encoding": {"x": x, "y": y}, "layer": layers}

    reach = max(1.25, *(max(row["ratio"], 1 / row["ratio"]) for row in rows))
    steps = (
        (1.2,) if reach < 1.5 else (1.5,) if reach < 2.2 else (2, 4) if reach < 6 else (2, 10) if reach < 30 else (10,)
    )
    ticks = [vega.sig(tick) for tick in sorted({1.0, *steps, *(1 / s for s in steps)})]
    ratio = vega.doubling_axis("ratio", "pred. / meas. (x)", ticks, (1 / reach / 1.05, reach * 1.05), format=".2~g")
    ratio["axis"].pop("labelExpr")
    above = vega.log_axis("predicted", "predicted (µs)", [*ends, *(row["predicted"] for row in rows)])
    bare = {**across, "title": None, "axis": {**across["axis"], "labels": False}}
    return {
        **vega.head(title, vega.COLUMN),
        "spacing": 8,
        "vconcat": [panel("predicted", above, 110, bare, ends), panel("ratio", ratio, 60, across, (1.0, 1.0))],
    }


def _errors_text(fit: Line | Curve) -> tuple[str, str]:
    """Write the mean and the largest relative error."""
    return format_percent(fit.mean_relative_error), format_percent(fit.max_relative_error)


def _fit_caption(title: str, fit: CollectiveFit, points: Sequence[SizeError]) -> str:
    """Say what was fitted, and by how much line and curve miss the sizes."""
    first, last = format_duration(points[0].measured_ns), format_duration(points[-1].measured_ns)
    (curve, curve_most), (line, line_most) = _errors_text(fit.curve), _errors_text(fit.line)
    worst = max(points, key=lambda p: max(p.line_ns / p.measured_ns, p.measured_ns / p.line_ns))
    off = worst.line_ns / worst.measured_ns
    where = f", most at {vega.size_tick(worst.size_bytes)}: it says {off:.2g} times what was measured"
    if max(off, 1 / off) < NEAR:
        where = ""
    band = fit.curve.cross_validated_error
    return (
        f"Predicted over measured time of {title}: {counted(len(points), 'size')} from"
        f" {first} to {last}; below, their ratio."
        f" The curve ({fit.curve.family}) is off by {curve} on average and {curve_most} at most, the straight line by"
        f" {line} and {line_most}{where}."
    ) + (
        "" if band is None else f" Band: ±{format_percent(band)}, the curve's mean error at sizes left out of the fit."
    )


def _fit_title(fit: CollectiveFit) -> str:
    """Write what was fitted: operation, ranks, network."""
    pattern = f" {fit.pattern}" if fit.pattern else ""
    network = f", {fit.network}" if fit.network else ""
    place = f" ({fit.placement})" if "+" in fit.placement else ""
    place += ", in place" if fit.in_place else ""
    return (
        f"{fit.op}{pattern}, {counted(fit.world_size, 'rank')}{place}, {fit.dtype}, {fit.device}/{fit.backend}{network}"
    )


def _fit_key(fit: CollectiveFit) -> str:
    parts = [fit.op, fit.pattern, f"{fit.world_size}-ranks", fit.placement if "+" in fit.placement else None]
    parts += [fit.dtype, "in-place" if fit.in_place else None, fit.device, fit.backend, fit.network]
    text = "-".join(part for part in parts if part)
    return file_part(text)


_WORRY = (0.15, 0.30)
"""Mean relative errors: from which on a fit is shown in yellow, and in red."""


def build_steps(calibration: Calibration) -> Table:
    """Return the table: one row a GPU and part of the step model; why rows were left out stands in the notes."""
    return tabled(
        "step_calibration",
        "Corrections of the step model",
        [(fit, part) for fit in calibration.steps for part in fit.parts],
        lead_column("accelerator", "GPU", "0.accelerator"),
        lead_column("part", "constant", "1.name"),
        Column("value", "times", "1.value", Format("{:.3f}".format)),
        Column("samples", "measurements", "1.samples", whole),
        Column("error_before", "off before", "1.error_before", percent),
        Column("error", "off with it", "1.error", percent),
        Column("left_out_error", "off where left out", "1.left_out_error", percent),
        Column("low", "80% interval from", "0.low", Format("{:.2f}x".format), drop=2),
        Column("high", "to", "0.high", Format("{:.2f}x".format), drop=2),
        notes=calibration.skipped if not calibration.fits else (),
    )


def calibration_table(calibration: Calibration) -> Table:
    """Return the table: one row a fit, in the order of the calibration; what was not fitted stands in the notes."""
    over_tcp = any(_over_tcp(fit) for fit in calibration.fits)
    return tabled(
        "calibration",
        "Calibration",
        calibration.fits,
        lead_column("op", "collective", _op_text),
        lead_column("world_size", "ranks", "world_size", whole),
        identity_column("placement", "placement", "placement"),
        identity_column("dtype", "type", "dtype"),
        identity_column("form", "form", _form_text),
        identity_column("device", "device", lambda fit: f"{fit.device}/{fit.backend}"),
        identity_column("network", "network", lambda fit: fit.network or "real"),
        Column("algorithm", "steps and bytes of", "algorithm", short="algo", drop=5),
        Column("steps", "steps", "line.steps", whole, drop=4),
        Column("alpha_ns", "alpha us/step", lambda fit: _alpha_value(fit.line), whole, unit="ns", short="alpha us"),
        Column("beta_bytes_per_s", "beta GB/s", lambda fit: _beta_value(fit.line), whole, unit="bytes/s"),
        *([Column("link_bytes_per_s", "link Gbit/s", _link_value, whole, unit="bytes/s", drop=3)] if over_tcp else []),
        Column("r_squared", "R²", "line.r_squared", Format("{:.4f}".format), drop=2),
        Column("line_error", "line off mean / max", lambda f: _errors_value(f.line), whole, short="line off"),
        Column("curve_error", "curve off mean / max", lambda f: _errors_value(f.curve), whole, short="curve off"),
        Column(
            "held_out_error",
            "at sizes left out",
            "curve.cross_validated_error",
            Format(format_percent),
            short="left out",
            drop=1,
        ),
        Column("family", "shape", "curve.family", drop=6),
        footnotes=(
            "time = steps x alpha + wire bytes / beta, fitted on relative error; ± is the 95% interval; R² of log(time)",
            "curve: monotone, through the measured sizes; at sizes left out: its error in cross-validation",
            *(("link: beta with TCP/IP headers on Ethernet, MTU 1500",) if over_tcp else ()),
        ),
        notes=(
            *(
                f"{_fit_name(fit)}: {text}"
                for fit in calibration.fits
                for text in filter(None, (fit.line_fails, *fit.notes))
            ),
            *(f"not fitted: {text}" for text in calibration.skipped),
        ),
    )


def _form_text(fit: CollectiveFit) -> str:
    return UNKNOWN if fit.line.wire_factor == 0 else "in place" if fit.in_place else "out of place"


def _fit_name(fit: CollectiveFit) -> str:
    parts = [_op_text(fit), f"{fit.world_size} ranks", fit.dtype, "in place" if fit.in_place else "", fit.network or ""]
    return " ".join(part for part in parts if part)


def _op_text(fit: CollectiveFit) -> str:
    return fit.op if fit.pattern is None else f"{fit.op} {fit.pattern}"


def _over_tcp(fit: CollectiveFit) -> bool:
    """Return whether beta is the rate of a link that carries TCP: gloo between hosts, real or emulated."""
    between_hosts = fit.network is not None or "+" in fit.placement
    return fit.backend == "gloo" and between_hosts and fit.line.beta_bytes_per_s is not None


def _link_value(fit: CollectiveFit) -> Value:
    if fit.line.beta_bytes_per_s is None or not _over_tcp(fit):
        return unknown()
    rate = link_rate_bytes_per_s(fit.line.beta_bytes_per_s)
    return Value(f"{rate * 8 / 1e9:.3g}", rate)


def _alpha_value(line: Line) -> Value:
    return Value(
        _with_interval(line.alpha_ns / 1e3, line.alpha_ns, line.alpha_ns_low, line.alpha_ns_high),
        line.alpha_ns,
        compact=_three_digits(line.alpha_ns / 1e3),
    )


def _beta_value(line: Line) -> Value:
    beta = line.beta_bytes_per_s
    if beta is None:
        return unknown()
    text = _with_interval(beta / 1e9, beta, line.beta_bytes_per_s_low, line.beta_bytes_per_s_high)
    return Value(text, beta, compact=_three_digits(beta / 1e9))


def _with_interval(shown: float, value: float, low: float | None, high: float | None) -> str:
    """Write a figure with its interval, as ±% where that is even."""
    if low is None or high is None or value <= 0:
        return _three_digits(shown)
    share = max(high - value, value - low) / value
    if share >= 1:
        return f"{_three_digits(shown)} ({_three_digits(shown * low / value)} to {_three_digits(shown * high / value)})"
    return f"{_three_digits(shown)} {format_plus_minus(share)}"


def _three_digits(value: float) -> str:
    """Write three digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _errors_value(fit: Line | Curve) -> Value:
    (mean, most), raw = _errors_text(fit), fit.mean_relative_error
    return Value(f"{mean} / {most}", raw, compact=mean, tone=judged(raw, *_WORRY))


VIEWS = (
    View("predicted", table=build_sizes),
    View("calibration", "Calibration: predicted against measured", table=calibration_table, charts=calibration_charts),
)

"""The fits of a calibration: latency and rate of every collective, how well line and curve meet the measurement."""

from __future__ import annotations

from stepscope.core.units import format_percent
from stepscope.predict.tcp import link_rate_bytes_per_s
from stepscope.records.calibration import Calibration, CollectiveFit, Curve, Line
from stepscope.report.tables._common import UNKNOWN, Column, Row, Table, TableKind, Tone, Value, unknown

_WORRY = (0.15, 0.30)
"""Mean relative error from which on a fit is shown in yellow, and in red."""


def build(calibration: Calibration) -> Table:
    """One row a fit, in the order of the calibration; what was not fitted stands in the notes."""
    over_tcp = any(_over_tcp(fit) for fit in calibration.fits)
    return Table(
        key="calibration",
        title="Calibration",
        columns=(
            Column(key="op", title="collective", align="left", role="identity", lead=True),
            Column(key="world_size", title="ranks", role="identity", lead=True),
            Column(key="placement", title="placement", align="left", role="identity"),
            Column(key="dtype", title="type", align="left", role="identity"),
            Column(key="form", title="form", align="left", role="identity"),
            Column(key="device", title="device", align="left", role="identity"),
            Column(key="network", title="network", align="left", role="identity"),
            Column(key="algorithm", title="steps and bytes of", align="left", short_title="algo", drop=5),
            Column(key="steps", title="steps", drop=4),
            Column(key="alpha_ns", title="alpha us/step", unit="ns", short_title="alpha us"),
            Column(key="beta_bytes_per_s", title="beta GB/s", unit="bytes/s"),
            *([Column(key="link_bytes_per_s", title="link Gbit/s", unit="bytes/s", drop=3)] if over_tcp else []),
            Column(key="r_squared", title="R²", drop=2),
            Column(key="line_error", title="line off mean / max", short_title="line off"),
            Column(key="curve_error", title="curve off mean / max", short_title="curve off"),
            Column(key="held_out_error", title="at sizes left out", short_title="left out", drop=1),
            Column(key="family", title="shape", align="left", drop=6),
        ),
        rows=tuple(_row(fit, over_tcp=over_tcp) for fit in calibration.fits),
        footnotes=(
            "time = steps x alpha + wire bytes / beta, fitted on relative error; ± is the 95 % interval; R² of log(time)",
            "curve: monotone, through the measured sizes; at sizes left out: its error in cross-validation",
            *(("link: beta with TCP/IP headers on Ethernet, MTU 1500",) if over_tcp else ()),
        ),
        notes=(
            *(f"{_name(fit)}: {text}" for fit in calibration.fits for text in _remarks(fit)),
            *(f"not fitted: {text}" for text in calibration.skipped),
        ),
    )


TABLE = TableKind(key="calibration", title="Calibration", needs=("calibration",), build=build)


def _row(fit: CollectiveFit, *, over_tcp: bool) -> Row:
    link = [_link(fit)] if over_tcp else []
    return Row(
        values=(
            _text(_op(fit)),
            Value(text=str(fit.world_size), raw=fit.world_size),
            _text(fit.placement),
            _text(fit.dtype),
            _text(UNKNOWN if fit.line.wire_factor == 0 else "in place" if fit.in_place else "out of place"),
            _text(f"{fit.device}/{fit.backend}"),
            _text(fit.network or "real"),
            _text(fit.algorithm),
            Value(text=str(fit.line.steps), raw=fit.line.steps),
            _alpha(fit.line),
            _beta(fit.line),
            *link,
            Value(text=f"{fit.line.r_squared:.4f}", raw=fit.line.r_squared),
            _errors(fit.line),
            _errors(fit.curve),
            _share(fit.curve.cross_validated_error),
            _text(fit.curve.family),
        )
    )


def _remarks(fit: CollectiveFit) -> list[str]:
    return [*([fit.line_fails] if fit.line_fails else []), *fit.notes]


def _name(fit: CollectiveFit) -> str:
    parts = [
        _op(fit),
        f"{fit.world_size} ranks",
        fit.dtype,
        "in place" if fit.in_place else "",
        fit.network or "",
    ]
    return " ".join(part for part in parts if part)


def _op(fit: CollectiveFit) -> str:
    return fit.op if fit.pattern is None else f"{fit.op} {fit.pattern}"


def _over_tcp(fit: CollectiveFit) -> bool:
    """Whether beta is the rate of a link that carries TCP: gloo between hosts, real or emulated."""
    between_hosts = fit.network is not None or "+" in fit.placement
    return fit.backend == "gloo" and between_hosts and fit.line.beta_bytes_per_s is not None


def _link(fit: CollectiveFit) -> Value:
    if fit.line.beta_bytes_per_s is None or not _over_tcp(fit):
        return unknown()
    rate = link_rate_bytes_per_s(fit.line.beta_bytes_per_s)
    return Value(text=f"{rate * 8 / 1e9:.3g}", raw=rate)


def _alpha(line: Line) -> Value:
    return Value(
        text=_with_interval(line.alpha_ns / 1e3, line.alpha_ns, line.alpha_ns_low, line.alpha_ns_high),
        compact=_digits(line.alpha_ns / 1e3),
        raw=line.alpha_ns,
    )


def _beta(line: Line) -> Value:
    beta = line.beta_bytes_per_s
    if beta is None:
        return unknown()
    text = _with_interval(beta / 1e9, beta, line.beta_bytes_per_s_low, line.beta_bytes_per_s_high)
    return Value(text=text, compact=_digits(beta / 1e9), raw=beta)


def _with_interval(shown: float, value: float, low: float | None, high: float | None) -> str:
    if low is None or high is None or value <= 0:
        return _digits(shown)
    share = max(high - value, value - low) / value
    if share >= 1:
        return f"{_digits(shown)} ({_digits(shown * low / value)} to {_digits(shown * high / value)})"
    return f"{_digits(shown)} ±{share:.1%}".replace("%", " %")


def _digits(value: float) -> str:
    """Three digits, without an exponent."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3g}"


def _errors(fit: Line | Curve) -> Value:
    mean, worst = fit.mean_relative_error, fit.max_relative_error
    tone: Tone = "bad" if mean >= _WORRY[1] else "warn" if mean >= _WORRY[0] else "plain"
    return Value(
        text=f"{format_percent(mean)} / {format_percent(worst)}",
        compact=format_percent(mean),
        raw=mean,
        tone=tone,
    )


def _share(fraction: float | None) -> Value:
    return unknown() if fraction is None else Value(text=format_percent(fraction), raw=fraction)


def _text(text: str) -> Value:
    return Value(text=text, raw=text)

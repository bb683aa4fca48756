"""How the page writes numbers."""

from __future__ import annotations


def sample_rate(per_s: float) -> str:
    """``12 345``, ``3.21``: per second."""
    return f"{per_s:,.0f}".replace(",", " ") if per_s >= 100 else f"{per_s:.3g}"


def plain(value: float) -> str:
    """A number on an axis: no idle zeros, no exponent between 0.0001 and a million."""
    if value == 0:
        return "0"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        return f"{value:.3g}"
    text = f"{value:.6g}"
    return text if "e" not in text else f"{value:f}".rstrip("0").rstrip(".")

"""How the page writes numbers."""

from __future__ import annotations


def sample_rate(per_s: float) -> str:
    """``12 345``, ``3.21``: per second."""
    return f"{per_s:,.0f}".replace(",", " ") if per_s >= 100 else f"{per_s:.3g}"

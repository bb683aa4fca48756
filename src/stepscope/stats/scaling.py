"""How well a speed-up uses its ranks (METRICS: Scaling)."""

from __future__ import annotations

EXCELLENT, GOOD, FAIR = 0.9, 0.8, 0.5
"""Lower ends, exclusive, of the ratings of efficiency."""

IMPOSSIBLE = 1.05
"""Above this efficiency n ranks did more than n times the work of one: a measuring error far more often than a cache."""


def rate(speedup: float, *, world_size: float) -> str | None:
    """``excellent`` (efficiency > 0.9), ``good`` (> 0.8), ``fair`` (> 0.5), ``poor`` or ``negative`` (speed-up < 1).

    None above 1.05: a speed-up that cannot be is not rated.
    """
    efficiency = speedup / world_size
    if efficiency > IMPOSSIBLE:
        return None
    if speedup < 1.0:
        return "negative"
    if efficiency > EXCELLENT:
        return "excellent"
    if efficiency > GOOD:
        return "good"
    return "fair" if efficiency > FAIR else "poor"

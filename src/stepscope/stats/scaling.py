"""How well a speed-up uses its ranks (METRICS: Scaling)."""

from __future__ import annotations

EXCELLENT, GOOD, FAIR = 0.9, 0.8, 0.5
"""Lower ends, exclusive, of the ratings of efficiency."""

SUPERLINEAR = 1.05
"""Above this efficiency n ranks do more than n times the work of one. Caches and sharded memory make that possible; a slow
baseline makes it far more often."""

NOT_EQUIVALENT = "not equivalent"
"""In place of a rating where the run does other work than its baseline: a lower accuracy, or ranks that share no data."""


def rate(speedup: float, *, world_size: float) -> str | None:
    """``excellent`` (efficiency > 0.9), ``good`` (> 0.8), ``fair`` (> 0.5), ``poor`` or ``negative`` (speed-up < 1).

    None above 1.05: a super-linear speed-up is not rated before its baseline is checked.
    """
    efficiency = speedup / world_size
    if efficiency > SUPERLINEAR:
        return None
    if speedup < 1.0:
        return "negative"
    if efficiency > EXCELLENT:
        return "excellent"
    if efficiency > GOOD:
        return "good"
    return "fair" if efficiency > FAIR else "poor"

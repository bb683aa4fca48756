"""Strategies against each other on the same model and ranks: how much faster each is than naive synchronisation."""

from __future__ import annotations

from stepscope.report.views._groups import BarComparison, compared, faster

NAIVE = "naive"

VIEW = compared(
    "strategies",
    "Strategies",
    "Strategies compared",
    BarComparison(
        along="strategy",
        label=faster,
        reference=lambda series: next((name for name in series if NAIVE in name.casefold()), series[0]),
    ),
)

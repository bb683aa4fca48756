"""Precisions against each other: the same model on the same ranks, with the speed-up over fp32 on each bar."""

from __future__ import annotations

from stepscope.report.views._groups import BarComparison, compared, times

PLAIN = "fp32"

VIEW = compared(
    "precision",
    "Precision",
    "Precisions compared",
    BarComparison(
        along="precision", label=times, reference=lambda series: PLAIN if PLAIN in series else series[0],
        gain="speed-up at equal ranks",
    ),
)  # fmt: skip

"""What tables of predicted steps share."""

from __future__ import annotations

from stepscope.predict.step.step import StepPrediction
from stepscope.report.table import Value

PART = {
    "compute": "computation",
    "launch": "launching kernels (host)",
    "tp": "tensor-parallel traffic",
    "cp": "context-parallel traffic",
    "ep": "expert-parallel traffic",
    "pp": "pipeline messages",
    "bubble": "pipeline bubble",
    "dp": "data-parallel traffic",
    "optimizer": "optimizer",
    "other": "fixed time, slowest GPU",
}


def interval(p: StepPrediction) -> Value:
    """Of tokens per second."""
    low, high = p.low_tokens_per_s, p.high_tokens_per_s
    return Value(text=f"{low:,.0f} to {high:,.0f}", raw=f"{low:.0f} {high:.0f}")

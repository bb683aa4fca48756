"""What accumulating gradients over more micro-steps before each reduction changes.

Steps of more micro-steps hold more samples, so a step's time is not compared: an epoch's, or the throughput.
"""

from __future__ import annotations

from stepscope.report.views._groups import BarComparison, compared, faster

VIEW = compared(
    "accumulation",
    "Gradient accumulation",
    "Gradient accumulation",
    BarComparison(
        along="accumulation", label=faster, ignore=("batch",), steps_alike=False,
        order=lambda name: (float(name.removeprefix("GA ")), name),
        note=" GA n: gradients are reduced once every n micro-steps, so an epoch has n times fewer reductions.",
    ),
)  # fmt: skip

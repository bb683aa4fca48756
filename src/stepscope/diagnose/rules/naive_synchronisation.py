"""Gradients are reduced after the whole backward pass: nothing overlaps.

What
----
Cells whose collectives all follow the backward pass and take a large share of the step. Overlap saves at most the
shorter of communication and backward pass; if the same run measured a strategy that overlaps on the same work, its gain
replaces the estimate, also if there is none.

In traces of any job: reductions launched after the last work of the autograd engine in the step (nine tenths of them,
by time), or inside it but waited for one by one, so that none is hidden. Reductions of the forward pass (tensor
parallel) do not count as gradients.

Why
---
First versions of distributed training often reduce gradient by gradient after backward, which pays every latency and
exposes all of it.

Known problems
--------------
On CPU ranks whose cores also run gloo's threads, communication is computation and overlap gains nothing (2 ranks on 2
cores, loopback: 0.9x to 1.2x, 2026-11). A measured cell therefore outranks the estimate.

References
----------
Li et al., PyTorch Distributed, VLDB 13(12), 2020, section 3.2.1 (the naive solution).
"""

from __future__ import annotations

from stepscope.diagnose.outcome import Statement, each_job, together
from stepscope.diagnose.rule import Rule, Threshold
from stepscope.diagnose.trace_facts import WORTH, WORTH_SOURCE
from stepscope.diagnose.traced_sync import traced_sync
from stepscope.results.evidence import Evidence

MIN_SHARE = Threshold(
    value=0.10, unit="share of the step", source="as for poor-overlap: removing less gains less than 11% of speed"
)
MIN_GAIN = Threshold(
    value=0.03,
    unit="share of the step, if both were measured",
    source="medians of equal cells on a quiet machine spread by 2% (2026-11); plus a margin",
)


def check(evidence: Evidence) -> Statement:
    """Cells by their plan and phases; traces of other jobs by where their reductions are launched.

    What reads cells is imported where there are some: `trace` starts without it.
    """
    measured = {cell.cell_id for cell in evidence.cells}
    traces = tuple(t for t in evidence.traces if t.cell_id not in measured)
    outcomes: list[Statement] = []
    if evidence.cells:
        from stepscope.diagnose.blocking_cells import blocking_cells

        outcomes.append(blocking_cells(evidence, least_share=MIN_SHARE.value, least_gain=MIN_GAIN.value))
    if traces:
        outcomes.append(each_job(traces, traced_sync))
    return together(outcomes)


RULE = Rule(
    symptom="gradients are reduced after the backward pass instead of during it",
    any_of=("cells", "traces"),
    look=check,
    protocol=3,
    thresholds={
        "share": MIN_SHARE,
        "gain": MIN_GAIN,
        "in a trace": Threshold(value=WORTH, unit="share of the window", source=WORTH_SOURCE),
    },
)

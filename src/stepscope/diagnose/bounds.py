"""What bounds a step: from which share on one of its parts is named so, whichever recorder timed it.

Cells of `bench`, timed steps of a job, windows of traces and logs give the shares of their parts, and get the kinds of those
that reach their limit here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Literal

from stepscope.core.units import format_percent
from stepscope.diagnose.rule import GRAVE, WORTH, Finding, Limit, Statement, skipped
from stepscope.records.finding import VerdictKind
from stepscope.records.nouns import Estimate

if TYPE_CHECKING:
    from stepscope.results.cell_facts import TimedCell
    from stepscope.results.evidence import Evidence

Recorder = Literal["cell", "diary", "trace", "log"]

PART_OF: Mapping[VerdictKind, str] = {
    "input-bound": "data",
    "before-forward": "before",
    "inference": "inference",
    "communication-bound": "communication",
    "pipeline-bubble": "communication",
    "straggler": "waiting",
    "uneven-work": "waiting",
    "optimizer-bound": "optimizer",
    "compute-bound": "computation",
    "computation-or-python": "computation",
    "host-bound": "computation",
    "memory-bound": "computation",
}
"""Kind of a verdict -> the part of a step that it is about."""

OF_WINDOW = Limit(
    WORTH,
    unit="share of the window",
    source=f"stepscope's choice, 2026-11: removing it gives a speed-up of at most {1 / (1 - WORTH):.2f}; two runs of one "
    "job differ by as much on shared machines",
)


def _step_share_limit(value: float, source: str) -> Limit:
    return Limit(value, unit="share of the step", source=source)


OF_STEP = _step_share_limit(WORTH, OF_WINDOW.source)
"""From which share on a part of the time is worth a finding."""

_LEFT_EXPOSED = _step_share_limit(0.25, "DDP always leaves its last bucket exposed")
_UPDATING = _step_share_limit(0.3, "Adam on a device takes 2 to 10%")

LIMITS: Mapping[Recorder, Mapping[VerdictKind, Limit]] = {
    "cell": {
        "optimizer-bound": _step_share_limit(
            2 * WORTH, "accumulation over 2 micro-steps halves it, and so returns what is worth a finding"
        ),
        "compute-bound": _step_share_limit(1 - WORTH, "the rest is worth a finding on communication or data"),
    },
    "diary": {
        "before-forward": _step_share_limit(0.2, "a guess, 2026-11: metrics of the step before are in it, too"),
        "communication-bound": _LEFT_EXPOSED,
        "optimizer-bound": _UPDATING,
    },
    "trace": {
        "compute-bound": Limit(
            1 - GRAVE,
            unit="share of the window",
            source="the rest is not a grave finding; such an efficiency is rated good",
        ),
    },
    "log": {
        "input-bound": _step_share_limit(
            0.15, "a loader that is fed in time takes 1 to 5% (OpenMMLab and detectron2 logs, 2026-11)"
        ),
        "communication-bound": _LEFT_EXPOSED,
        "optimizer-bound": _UPDATING,
    },
}
"""Least share of the step, or window, of what a kind is about; OF_STEP, where there is none.

Rules of their own judge communication of cells and traces. Of a log there is a mean, without other ranks and steps.
"""


def limit_of(kind: VerdictKind, recorder: Recorder) -> Limit:
    return LIMITS[recorder].get(kind, OF_STEP)


def bound(kind: VerdictKind, share: Estimate | float | None, recorder: Recorder) -> bool:
    """Return whether so large a share bounds the step; None: not known."""
    value = share.value if isinstance(share, Estimate) else share
    return value is not None and value >= limit_of(kind, recorder)


def over_share(
    evidence: Evidence,
    kind: VerdictKind,
    phase: str,
    finding: Callable[[Evidence, list[TimedCell]], Finding],
    *,
    spent: str,
) -> Statement:
    """Report ``finding`` on cells of which ``phase`` takes more than the limit: one a model, worst cell first.

    spent: what the step does there (``of the step waits for data``).
    """
    from stepscope.results.cell_facts import by_model, timed_cells

    cells = timed_cells(evidence)
    if not cells:
        return skipped("no finished cell has step times", "stepscope bench MATRIX.yaml")
    ranked, limit = sorted(cells, key=lambda cell: -cell.share(phase)), limit_of(kind, "cell")
    if groups := by_model(cell for cell in ranked if cell.share(phase) > limit):
        return [finding(evidence, group) for group in groups]
    return f"{ranked[0].name}: {format_percent(ranked[0].share(phase))} {spent}, limit {format_percent(limit)}"

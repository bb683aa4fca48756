"""Why a layout is far slower than a better one: the cause, out of the budgets of both."""

from __future__ import annotations

from stepscope.predict.step.step import StepPrediction

MUCH_SLOWER = 0.5
"""Speed over that of the better layout below which a cause is named."""


def cause_of(prediction: StepPrediction, better: StepPrediction) -> str | None:
    """``sync per micro-batch``, ``launch-bound``, ``TP across nodes``, ``bubble`` or what else takes the time;
    None: the layout is not much slower than ``better``. What takes most time of a token above its time is the cause."""
    if prediction.tokens_per_s_per_gpu >= MUCH_SLOWER * better.tokens_per_s_per_gpu:
        return None
    layout = prediction.layout
    each, other = (1 / p.layout.tokens_per_step * p.layout.gpus for p in (prediction, better))
    more = {name: value * each - better.budget.parts[name] * other for name, value in prediction.budget.parts.items()}
    part = max(more, key=lambda name: more[name])
    if part == "dp" and layout.sync_each:
        return "sync per micro-batch"
    if part == "tp" and layout.tp > (prediction.cluster.gpus_per_node or 8):
        return "TP across nodes"
    if part in ("launch", "compute"):
        return "launch-bound"
    return {"tp": "TP traffic", "dp": "gradient traffic"}.get(part, part)

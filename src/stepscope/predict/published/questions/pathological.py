"""Layouts of a sweep that are slower than half of its best: are they flagged, and with the right cause?"""

from __future__ import annotations

from collections import Counter

from stepscope.predict.published.as_layout import Asked
from stepscope.predict.published.fitted import fitted_on
from stepscope.predict.published.grade import Answer, Bar, Graded, Question
from stepscope.predict.published.material import Material
from stepscope.predict.step.pathology import cause_of

SYNC, LAUNCH, TP, BUBBLE = "sync per micro-batch", "launch-bound", "TP across nodes", "bubble"


def true_causes(asked: Asked) -> set[str]:
    """What of the layout can make it slow, from the layout alone (the README of the tables lists these): gradients
    reduced after every micro-batch, tp over more GPUs than a node has, a bubble of more than a third, small kernels."""
    a, found = asked.layout, set[str]()
    if "allreduce_every_microbatch" in asked.row.flags:
        return {SYNC}
    if a.tp > (asked.row.gpus_per_node or 8):
        found.add(TP)
    if (a.pp - 1) / (a.micro_batches + a.pp - 1) > 1 / 3:
        found.add(BUBBLE)
    if a.micro_batch * a.seq_len / a.tp <= 4096:
        found.add(LAUNCH)
    return found


def ask(material: Material) -> Answer:
    rows, skipped = [], Counter(material.unasked)
    skipped["not of a sweep"] += len(material.timed) - sum(len(sweep) for sweep in material.sweeps.values())
    flagged = right = wanted = 0
    for found in material.sweeps.values():
        best = max(found, key=material.speed)
        for asked in found:
            slow = material.slow(asked)
            causes = true_causes(asked)
            cause = cause_of(material.step(asked), material.step(best))
            if slow and not causes:
                skipped["slow, and nothing of its layout says why"] += 1
                continue
            good = slow and cause in causes
            wanted, flagged, right = wanted + slow, flagged + (cause is not None), right + good
            rows.append(
                Graded(
                    source=asked.row.source,
                    row_id=asked.row.row_id,
                    predicted=float(cause is not None),
                    measured=float(slow),
                    error=float(slow != good or (cause is not None and not slow)),
                    fitted=fitted_on(asked.row),
                )
            )
    extra = {}
    if flagged:
        extra["precision"] = right / flagged
    if wanted:
        extra["recall"] = right / wanted
    return Answer(rows=tuple(rows), skipped=skipped, extra=extra)


QUESTION = Question(
    key="pathological", title="pathological layouts flagged with the right cause", unit="layouts", ask=ask,
    bars=(Bar(figure="precision", least=0.85), Bar(figure="recall", least=0.7)),
)  # fmt: skip

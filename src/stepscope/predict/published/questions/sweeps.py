"""The questions about sweeps, many layouts of one model on one machine: is the best found, are the slow ones explained?"""

from __future__ import annotations

from collections import Counter

from stepscope.predict.published.as_layout import Asked
from stepscope.predict.published.grade import Answer, Goal, Question, graded
from stepscope.predict.published.material import Material, speed
from stepscope.predict.step.alternatives import cause_of

SYNC, LAUNCH, TP, BUBBLE = "sync per micro-batch", "launch-bound", "TP across nodes", "bubble"


def outside(material: Material) -> Counter[str]:
    """Why rows belong to no sweep."""
    left = len(material.timed) - sum(len(sweep) for sweep in material.sweeps.values())
    return Counter({**material.unasked, "not of a sweep": left})


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


def pathological(material: Material) -> Answer:
    """Layouts of a sweep that are slower than half of its best: are they flagged, and with the right cause?"""
    rows, skipped = [], outside(material)
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
            wrong = slow != good or (cause is not None and not slow)
            rows.append(graded(asked.row, float(cause is not None), float(slow), error=float(wrong)))
    extra = {}
    if flagged:
        extra["precision"] = right / flagged
    if wanted:
        extra["recall"] = right / wanted
    return Answer(rows=tuple(rows), skipped=skipped, extra=extra)


def regret(material: Material) -> Answer:
    """The fastest layout by prediction among those with one global batch: how far from the one measured fastest."""
    rows, skipped = [], outside(material)
    for sweep in material.sweeps.values():
        batch = Counter(asked.layout.global_batch for asked in sweep).most_common(1)[0][0]
        found = [asked for asked in sweep if asked.layout.global_batch == batch]
        skipped["another global batch than most of its sweep"] += len(sweep) - len(found)
        chosen = max(found, key=material.speed)
        best = max(speed(asked) for asked in found)
        rows.append(graded(chosen.row, speed(chosen), best, error=1 - speed(chosen) / best))
    return Answer(rows=tuple(rows), skipped=skipped)


PATHOLOGICAL = Question(
    key="pathological", title="pathological layouts flagged with the right cause", unit="layouts", ask=pathological,
    bars=(Goal(figure="precision", least=0.85), Goal(figure="recall", least=0.7)),
)  # fmt: skip
REGRET = Question(
    key="regret", title="recommended layout's regret on the sweeps", unit="tokens/s per GPU", ask=regret,
    bars=(Goal(figure="mean_error", most=0.08),), baseline="29%",
)  # fmt: skip

"""The questions that published rows answer, in the order of the printed table; those about sweeps and memory stand here.

Of sweeps, many layouts of one model on one machine: is the best found, are the slow ones explained? Of memory: the peak of
rows that print it, and whether rows that failed are predicted not to fit.
"""

from __future__ import annotations

from collections import Counter

from benchmarks.validate import speeds
from benchmarks.validate.collectives import COLLECTIVES_MIDDLE
from benchmarks.validate.conventions import MFU_CONVENTION
from benchmarks.validate.grade import Answer, Goal, Question, graded
from stepscope.core.words import grouped
from stepscope.predict.step.alternatives import cause_of
from stepscope.predict.step.calibration import MEMORY_LIMIT
from stepscope.predict.step.run_fit import Material, speed
from stepscope.predict.step.run_layout import Asked

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


ALLOCATED = ("nanotron", "fsdp2")
"""Code that prints what torch's allocator counts; of other code it is taken to be what the device has in use."""

MOST_MEMORY = 1.3
"""Of the memory of the accelerator that a row is said to have run on: some tables name another variant's key."""


def peak_memory(material: Material) -> Answer:
    rows, skipped = [], Counter(material.unread)
    for row, asked in material.questions:
        if row.failed:
            continue
        if row.memory_bytes is None:
            skipped[f"a peak in {row.memory_unit}" if row.memory_unit else "no peak printed"] += 1
            continue
        if isinstance(asked, str):
            skipped[asked] += 1
            continue
        if row.memory_bytes > MOST_MEMORY * asked.cluster.gpu.memory_bytes:
            skipped["a peak above the GPU's memory"] += 1
            continue
        rows.append(graded(row, peak(material, asked), row.memory_bytes))
    return Answer(rows=tuple(rows), skipped=skipped, extra=out_of_memory(material, skipped))


def peak(material: Material, asked: Asked) -> float:
    """Bytes of the kind that the source prints."""
    memory = material.step(asked).memory
    return memory.total - memory.base if asked.stack in ALLOCATED else memory.total  # base: not the allocator's


def out_of_memory(material: Material, skipped: Counter[str]) -> dict[str, float]:
    """Recall over rows that failed in sources that list failures, and false alarms over those that ran there. A layout that
    cannot be counts as predicted to fail. The sources do not say which failures were memory's: one is left out where a
    layout that needs no less ran."""
    sources = {row.source.removesuffix("-failed") for row in material.rows if row.failed}
    enough = grouped((a for a in material.timed if a.row.source in sources), lambda a: a.model.name)
    failed, ran = [], []
    for row, asked in material.questions:
        if row.source.removesuffix("-failed") not in sources or row.shape is None:
            continue
        if isinstance(asked, str) and "cannot be" not in asked:
            continue
        wrong = isinstance(asked, str) or not fits(material, asked)
        if row.failed and isinstance(asked, Asked) and any(no_less(a, asked) for a in enough.get(asked.model.name, ())):
            skipped["failed, though a layout that needs no less memory ran"] += 1
        elif row.failed:
            failed.append(wrong)
        elif row.tokens_per_s:
            ran.append(wrong)
    found = {}
    if failed:
        found["out_of_memory_recall"] = sum(failed) / len(failed)
    if failed and ran:
        found["false_alarms"] = sum(ran) / len(ran)
    return found


def no_less(ran: Asked, failed: Asked) -> bool:
    """Whether ``ran`` needs at least the memory of ``failed``, whatever a model says of either."""
    a, b = ran.layout, failed.layout
    alike = (a.tp, a.pp, a.seq_len, a.recompute) == (b.tp, b.pp, b.seq_len, b.recompute)
    states = a.zero == 0 or (b.zero == a.zero and a.dp <= b.dp)
    return (
        alike and states and a.micro_batch >= b.micro_batch and min(a.micro_batches, a.pp) >= min(b.micro_batches, b.pp)
    )


def fits(material: Material, asked: Asked) -> bool:
    return material.step(asked).memory.total <= MEMORY_LIMIT * asked.cluster.gpu.total_bytes


MEMORY = Question(
    key="memory", title="peak memory; failures foreseen", unit="bytes", ask=peak_memory,
    bars=(
        Goal(figure="mean_error", most=0.08), Goal(figure="out_of_memory_recall", least=0.90),
        Goal(figure="false_alarms", most=0.02),
    ),
    baseline="12%; 0.86",
)  # fmt: skip


QUESTIONS: tuple[Question, ...] = (
    speeds.SCALE_OUT,
    speeds.DENSE_RECIPES,
    speeds.NEW_LAYOUT,
    speeds.ZERO_SHOT,
    speeds.FAMILY_FACTOR,
    speeds.MOE_ONE_ROW,
    REGRET,
    PATHOLOGICAL,
    MEMORY,
    MFU_CONVENTION,
    speeds.INTERVAL,
    COLLECTIVES_MIDDLE,
)

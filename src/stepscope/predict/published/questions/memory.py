"""Peak memory of rows that print it, and whether rows that failed are predicted not to fit."""

from __future__ import annotations

from collections import Counter

from stepscope.predict.published.as_layout import Asked
from stepscope.predict.published.grade import Answer, Goal, Question, graded
from stepscope.predict.published.material import Material, grouped
from stepscope.predict.step.calibration import MEMORY_LIMIT

ALLOCATED = ("nanotron", "fsdp2")
"""Code that prints what torch's allocator counts; of other code it is taken to be what the device has in use."""

MOST_MEMORY = 1.3
"""Of the memory of the accelerator that a row is said to have run on: some tables name another variant's key."""


def ask(material: Material) -> Answer:
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
    return memory.allocated if asked.stack in ALLOCATED else memory.total


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


QUESTION = Question(
    key="memory", title="peak memory; failures foreseen", unit="bytes", ask=ask,
    bars=(
        Goal(figure="mean_error", most=0.08), Goal(figure="out_of_memory_recall", least=0.90),
        Goal(figure="false_alarms", most=0.02),
    ),
    baseline="12%; 0.86",
)  # fmt: skip

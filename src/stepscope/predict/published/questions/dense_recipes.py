"""Dense recipes of NVIDIA at 512 GPUs and more, from all runs of the same recipe on at most 256."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Hashable

from stepscope.predict.published.as_layout import Asked
from stepscope.predict.published.grade import Answer, Bar, Question
from stepscope.predict.published.material import Material, grouped
from stepscope.predict.published.questions._speed import doublings, judge, taught

SOURCES = ("dgxc", "megatron-bridge", "megatron-lm")
MOST_CALIBRATING, LEAST_ASKED = 256, 512


def recipe(asked: Asked) -> Hashable:
    row = asked.row
    return row.source, row.accelerator, row.model, row.seq_len, asked.layout.precision


def ask(material: Material) -> Answer:
    dense = [a for a in material.near if a.row.source.startswith(SOURCES) and not a.model.experts]
    rows, skipped = [], Counter(material.not_near)
    skipped["not a dense recipe of NVIDIA's"] += len(material.near) - len(dense)
    for found in grouped(dense, recipe).values():
        small = [asked for asked in found if asked.layout.gpus <= MOST_CALIBRATING]
        large = [asked for asked in found if asked.layout.gpus >= LEAST_ASKED]
        skipped["fewer than 512 GPUs"] += len(found) - len(large)
        for asked in large:
            alike = [s for s in small if same(s, asked)] or small
            if not alike:
                skipped["no run of the recipe on 256 GPUs or fewer"] += 1
                continue
            factor = statistics.median(taught(material, s) for s in alike)
            nearest = max(alike, key=lambda s: s.layout.gpus)
            rows.append(judge(material, asked, factor, "scale-out", doublings=doublings(asked, nearest)))
    return Answer(rows=tuple(rows), skipped=skipped)


def same(small: Asked, large: Asked) -> bool:
    """Parallel sizes except dp."""
    a, b = small.layout, large.layout
    return (a.tp, a.pp, a.cp, a.zero) == (b.tp, b.pp, b.cp, b.zero)


QUESTION = Question(
    key="dense-nvidia-recipes", title="dense NVIDIA recipes at 512-2,304 GPUs from runs <= 256",
    unit="tokens/s per GPU", ask=ask, bars=(Bar(figure="mean_error", most=0.04),), baseline="6%",
)  # fmt: skip

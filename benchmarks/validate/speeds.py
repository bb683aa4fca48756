"""The questions about predicted speed: what other rows of its kind teach corrects a row's prediction."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace

from benchmarks.validate.fitted import SEEN_CODES
from benchmarks.validate.grade import Answer, Goal, Graded, Question, graded
from stepscope.core.words import grouped
from stepscope.predict.step import calibration
from stepscope.predict.step.calibration import EXTRAPOLATED
from stepscope.predict.step.run_fit import Material, layout_of, speed
from stepscope.predict.step.run_layout import Asked
from stepscope.predict.step.run_rows import TrainingRow

_RELEASE = re.compile(r"tags (\S+?);|(\d\d\.\d\d(?:\.\d+)?) NeMo Container")
UNIT = "tokens/s per GPU"
NVIDIA = ("dgxc", "megatron-bridge", "megatron-lm")
"""Sources of NVIDIA's recipes."""
MOST_CALIBRATING, LEAST_ASKED = 256, 512
"""GPUs of the recipes that calibrate, and of those that are asked about."""


def release(row: TrainingRow) -> str:
    """The release that a table of a repository belongs to."""
    found = _RELEASE.search(row.notes)
    return (found[1] or found[2]) if found else ""


def taught(material: Material, asked: Asked) -> float:
    """Measured over predicted speed."""
    return speed(asked) / material.speed(asked)


def judge(
    material: Material, asked: Asked, factor: float, kind: str, *, doublings: float = 0.0, alone: bool = False
) -> Graded:
    """One row with ``factor`` on its predicted speed. doublings: GPUs over those that calibrated, log2. alone: no row of its
    source calibrated, so that code and GPUs which nothing was fitted on have wider intervals."""
    wide = 1.0
    if alone:
        known = calibration.gpu_family(asked.gpu) in calibration.FAMILY_FACTOR
        kind = kind if known and asked.stack in SEEN_CODES else kind_of(asked, "unseen")
        wide = 1.0 if known else EXTRAPOLATED
    return graded(asked.row, material.speed(asked) * factor, speed(asked), reach=reach(kind, doublings, wide))


def reach(kind: str, doublings: float = 0.0, wide: float = 1.0) -> tuple[float, float] | None:
    """The 80% interval of the kind, wider with each doubling of GPUs away from what calibrated it."""
    if kind not in calibration.REACH:
        return None
    low, high = calibration.REACH[kind]
    wide *= math.sqrt(1 + calibration.WIDER_PER_DOUBLING * abs(doublings))
    return low**wide, high**wide


def kind_of(asked: Asked, what: str) -> str:
    return f"{what} moe" if asked.model.experts else what


def mean_of(found: Sequence[Graded]) -> Graded:
    """One row that several others calibrated in turn."""
    n = len(found)
    covered = [one.covered for one in found if one.covered is not None]
    return replace(
        found[0],
        predicted=sum(one.predicted for one in found) / n,
        error=sum(one.error for one in found) / n,
        covered=sum(covered) / len(covered) if covered else None,
    )


def in_turn(material: Material, family: Sequence[Asked], what: str, *, apart: bool) -> Iterable[Graded]:
    """Every row of ``family`` graded with each other one calibrating. apart: only those of another layout."""
    factors = [taught(material, asked) for asked in family]
    layouts = [layout_of(asked) for asked in family]
    for j, asked in enumerate(family):
        found = [
            judge(material, asked, factors[i], kind_of(asked, what), doublings=doublings(asked, family[i]))
            for i in range(len(family))
            if i != j and not (apart and layouts[i] == layouts[j])
        ]
        if found:
            yield mean_of(found)


def doublings(asked: Asked, calibrating: Asked) -> float:
    return math.log2(asked.layout.gpus / calibrating.layout.gpus)


def scale_out(material: Material) -> Answer:
    """More GPUs: the smallest run of a family and layout calibrates, the larger ones are predicted."""

    def family(asked: Asked) -> Hashable:
        """The same job on other numbers of GPUs: model, machine, precision, parallel sizes except dp, micro-batch."""
        row = asked.row
        return (
            row.source, row.hardware, row.model, row.seq_len, row.precision, release(row), asked.model.layers,
            layout_of(asked),
        )  # fmt: skip

    rows, skipped = [], Counter(material.not_near)
    for found in grouped(material.near, family).values():
        least = min(asked.layout.gpus for asked in found)
        small = [asked for asked in found if asked.layout.gpus == least]
        factor = statistics.median(taught(material, asked) for asked in small)
        larger = [asked for asked in found if asked.layout.gpus > least]
        rows += [judge(material, asked, factor, "scale-out", doublings=doublings(asked, small[0])) for asked in larger]
        skipped["calibrates, or nothing larger of its family"] += len(found) - len(larger)
    return Answer(rows=tuple(rows), skipped=skipped)


def dense_recipes(material: Material) -> Answer:
    """Dense recipes of NVIDIA at 512 GPUs and more, from all runs of the same recipe on at most 256."""

    def recipe(asked: Asked) -> Hashable:
        row = asked.row
        return row.source, row.accelerator, row.model, row.seq_len, asked.layout.precision

    def sizes(asked: Asked) -> tuple[int, ...]:
        """Parallel sizes except dp."""
        return asked.layout.tp, asked.layout.pp, asked.layout.cp, asked.layout.zero

    dense = [a for a in material.near if a.row.source.startswith(NVIDIA) and not a.model.experts]
    rows, skipped = [], Counter(material.not_near)
    skipped["not a dense recipe of NVIDIA's"] += len(material.near) - len(dense)
    for found in grouped(dense, recipe).values():
        small = [asked for asked in found if asked.layout.gpus <= MOST_CALIBRATING]
        large = [asked for asked in found if asked.layout.gpus >= LEAST_ASKED]
        skipped["fewer than 512 GPUs"] += len(found) - len(large)
        for asked in large:
            alike = [s for s in small if sizes(s) == sizes(asked)] or small
            if not alike:
                skipped["no run of the recipe on 256 GPUs or fewer"] += 1
                continue
            factor = statistics.median(taught(material, s) for s in alike)
            nearest = max(alike, key=lambda s: s.layout.gpus)
            rows.append(judge(material, asked, factor, "scale-out", doublings=doublings(asked, nearest)))
    return Answer(rows=tuple(rows), skipped=skipped)


def new_layout(material: Material) -> Answer:
    """Another layout of the same model on the same GPU: one row calibrates, each row in turn."""

    def family(asked: Asked) -> Hashable:
        row = asked.row
        return row.source, row.hardware, row.model, row.seq_len, asked.layout.precision, row.n_gpus, release(row)

    rows, skipped = [], Counter(material.not_whole)
    dense = [asked for asked in material.whole if not asked.model.experts]
    for found in grouped(dense, family).values():
        graded = list(in_turn(material, found, "new-layout", apart=True))
        rows += graded
        skipped["no other layout of its model, GPU and number of GPUs"] += len(found) - len(graded)
    skipped["mixture of experts: a question of its own"] += len(material.whole) - len(dense)
    return Answer(rows=tuple(rows), skipped=skipped)


def moe_one_row(material: Material) -> Answer:
    """Mixtures of experts: one row of the model on the GPU calibrates the others, each row in turn."""

    def family(asked: Asked) -> Hashable:
        row = asked.row
        return row.source, row.accelerator, re.sub(r"\s*[(\[].*", "", row.model)

    rows, skipped = [], Counter(material.not_near)
    mixtures = [asked for asked in material.near if asked.model.experts]
    skipped["dense"] += len(material.near) - len(mixtures)
    for found in grouped(mixtures, family).values():
        graded = list(in_turn(material, found, "one-row", apart=False))
        rows += graded
        skipped["no other row of its model and GPU"] += len(found) - len(graded)
    return Answer(rows=tuple(rows), skipped=skipped)


def zero_shot(material: Material) -> Answer:
    """Speed with the shipped constants alone: no row of the model, layout or cluster is given."""
    rows = tuple(judge(material, asked, 1.0, kind_of(asked, "zero-shot"), alone=True) for asked in material.whole)
    return Answer(rows=rows, skipped=material.not_whole)


def family_factor(material: Material) -> Answer:
    """Speed with one more factor per GPU family, fitted on the development rows of that family."""
    rows, skipped = [], Counter(material.not_whole)
    for asked in material.whole:
        factor = calibration.FAMILY_FACTOR.get(calibration.gpu_family(asked.gpu))
        if factor is None:
            skipped[f"no development row of {calibration.gpu_family(asked.gpu)}"] += 1
        else:
            rows.append(judge(material, asked, 1 / factor, kind_of(asked, "family"), alone=True))
    return Answer(rows=tuple(rows), skipped=skipped)


ASKS: tuple[Callable[[Material], Answer], ...] = (
    scale_out, dense_recipes, new_layout, zero_shot, family_factor, moe_one_row,
)  # fmt: skip


def interval(material: Material) -> Answer:
    """How often the stated 80% intervals of predicted speeds hold the measured one, over all questions about speed."""
    return Answer(rows=tuple(row for ask in ASKS for row in ask(material).rows if row.covered is not None))


SCALE_OUT = Question(
    key="scale-out", title="scale-out from the smallest run of a family and layout", unit=UNIT, ask=scale_out,
    bars=(Goal(figure="mean_error", most=0.09), Goal(figure="median_error", most=0.03)), baseline="17% / 4%",
)  # fmt: skip
DENSE_RECIPES = Question(
    key="dense-nvidia-recipes", title="dense NVIDIA recipes at 512-2,304 GPUs from runs <= 256", unit=UNIT,
    ask=dense_recipes, bars=(Goal(figure="mean_error", most=0.04),), baseline="6%",
)  # fmt: skip
NEW_LAYOUT = Question(
    key="new-layout", title="new layout, same model and GPU, one calibration row", unit=UNIT, ask=new_layout,
    bars=(Goal(figure="mean_error", most=0.15),), baseline="27%",
)  # fmt: skip
ZERO_SHOT = Question(
    key="zero-shot", title="zero-shot, rows with a full configuration", unit=UNIT, ask=zero_shot,
    bars=(Goal(figure="mean_error", most=0.22), Goal(figure="median_error", most=0.14)), baseline="50% / 32%",
)  # fmt: skip
FAMILY_FACTOR = Question(
    key="family-factor", title="one factor per GPU family, fitted on development rows only", unit=UNIT,
    ask=family_factor, bars=(Goal(figure="mean_error", most=0.17),), baseline="33%",
)  # fmt: skip
MOE_ONE_ROW = Question(
    key="moe-one-row", title="mixture of experts, one calibration row", unit=UNIT, ask=moe_one_row,
    bars=(Goal(figure="mean_error", most=0.18),), baseline="26-31%",
)  # fmt: skip
INTERVAL = Question(
    key="interval", title="stated 80% intervals hold the measured speed", unit=UNIT, ask=interval,
    bars=(Goal(figure="coverage", least=0.70, most=0.90),),
)  # fmt: skip

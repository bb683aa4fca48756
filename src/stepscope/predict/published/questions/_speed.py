"""What the questions about speed share: a row's prediction times what other rows of its kind taught."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stepscope.predict.published.as_layout import Asked
from stepscope.predict.published.fitted import fitted_on
from stepscope.predict.published.grade import Graded, graded
from stepscope.predict.published.material import Material, speed
from stepscope.predict.step import fitted
from stepscope.predict.step.reach import EXTRAPOLATED


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
        known = fitted.gpu_family(asked.gpu) in fitted.FAMILY_FACTOR
        kind = kind if known and asked.stack in fitted.SEEN_CODES else kind_of(asked, "unseen")
        wide = 1.0 if known else EXTRAPOLATED
    return graded(
        asked.row.source, asked.row.row_id, material.speed(asked) * factor, speed(asked),
        reach=reach(kind, doublings, wide), fitted=fitted_on(asked.row),
    )  # fmt: skip


def reach(kind: str, doublings: float = 0.0, wide: float = 1.0) -> tuple[float, float] | None:
    """The 80% interval of the kind, wider with each doubling of GPUs away from what calibrated it."""
    if kind not in fitted.REACH:
        return None
    low, high = fitted.REACH[kind]
    wide *= math.sqrt(1 + fitted.WIDER_PER_DOUBLING * abs(doublings))
    return low**wide, high**wide


def kind_of(asked: Asked, what: str) -> str:
    return f"{what} moe" if asked.model.experts else what


def mean_of(found: Sequence[Graded]) -> Graded:
    """One row that several others calibrated in turn."""
    first, n = found[0], len(found)
    covered = [one.covered for one in found if one.covered is not None]
    return Graded(
        source=first.source, row_id=first.row_id, measured=first.measured, fitted=first.fitted,
        predicted=sum(one.predicted for one in found) / n, error=sum(one.error for one in found) / n,
        covered=sum(covered) / len(covered) if covered else None,
    )  # fmt: skip


def in_turn(material: Material, family: Sequence[Asked], what: str, *, apart: bool) -> Iterable[Graded]:
    """Every row of ``family`` graded with each other one calibrating. apart: only those of another layout."""
    from stepscope.predict.published.material import layout_of

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

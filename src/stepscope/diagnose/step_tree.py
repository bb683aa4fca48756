"""The parts of a step, or of a traced window, as a tree that adds up."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stepscope.records.finding import RANKS_DIFFER, VerdictPart
from stepscope.records.parts import OF_TRACES, STEP, below
from stepscope.stats.step_table import Numbers, StepTable

ROUNDING = 1e-6
"""Of the step: what is left of it by the rounding of records is no part."""


def tree_of(
    table: StepTable,
    parts: Mapping[str, Numbers],
    *,
    marked: str | None,
    row: int | None = None,
    every_rank: bool = False,
) -> tuple[VerdictPart, ...]:
    """Return the parts of ``records.parts`` that the table has: those of one level sum to the step.

    parts: ns [ranks, steps] by key, those without parts below them; NaN: not known of a rank. marked: what is the cause.
    row: of the rank whose means they are; None: the mean of all. every_rank: all ranks' means, not only where they differ.
    """
    whole = table.whole_ns.mean(axis=1)
    of_step = float(whole.mean() if row is None else whole[row])

    def part(key: str, values: Numbers, inner: tuple[VerdictPart, ...] = ()) -> VerdictPart:
        means = values.mean(axis=1)
        differ = table.ranks > 1 and float(np.ptp(means)) > RANKS_DIFFER * of_step
        ns = float(means.mean() if row is None else means[row])
        by_rank = tuple(zip(table.rank_numbers, means.tolist(), strict=True)) if differ or every_rank else ()
        return VerdictPart(key=key, ns=ns, share=ns / of_step, parts=inner, by_rank=by_rank, cause=key == marked)

    def group(key: str) -> VerdictPart | None:
        inner = [name for name in below(key) if name in parts]
        if not inner:
            return part(key, parts[key]) if key in parts else None
        values = parts.get(key, sum(parts[name] for name in inner))
        shown = [part(name, parts[name]) for name in inner if key == "communication" or parts[name].any()]
        return part(key, np.asarray(values), tuple(shown))

    keys = [step_part.key for step_part in (*STEP, *OF_TRACES) if step_part.parent is None]
    tree = [verdict_part for key in keys if (verdict_part := group(key)) is not None]
    return tuple(verdict_part for verdict_part in tree if verdict_part.share > ROUNDING)

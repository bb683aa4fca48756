"""What a late rank takes longer for than another one, or a slow step than the others of its rank: operators on the CPU,
kernels on a GPU, in profiled steps.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

import numpy as np

from stepscope.core.errors import UsageError
from stepscope.records.finding import OperatorExcess
from stepscope.records.trace_summary import DiffRow, RankPass
from stepscope.traces.diff import OTHERS, diff_profiles
from stepscope.traces.kernel_names import is_communication

MOST = 3
"""Of a rank: what comes after takes less."""

WORTH = 0.01
"""Of the late rank's step. Operators of two equal ranks differ by less (0.4% at most in 20 clean windows, 2026-11)."""

SLOW, WORTH_SLOW = 1.25, 0.1
"""The slowest step / the median one, at least; an operator's part of what slow steps take more."""

_COLLECTIVES = ("gloo:", "nccl:", "c10d::", "record_param_comms")
"""Operators that wait for other ranks: how their names begin."""

CERTAIN = 0.05
"""p value, corrected for all rows."""


def slow_operators(passes: Sequence[RankPass], ranks: Collection[int]) -> tuple[OperatorExcess, ...]:
    """Compare each late rank with the first that is not late; nothing where either was not profiled by step."""
    profiles = {
        rank_pass.facts.rank: rank_pass.profile
        for rank_pass in passes
        if rank_pass.profile and rank_pass.profile.marked
    }
    usual = next((rank for rank in sorted(profiles) if rank not in ranks), None)
    excesses: list[OperatorExcess] = []
    if usual is None:
        return ()
    for rank in sorted(set(ranks) & profiles.keys()):
        late, other = profiles[rank], profiles[usual]
        try:
            diff = diff_profiles(other, late, limit=None)
        except UsageError:  # one of a GPU, one of a CPU
            continue
        step = next(row.after_ns for row in diff.parts if row.name == "window")
        rows = diff.kernels if late.source == "device" else diff.operators
        excesses += [_operator_excess(row, rank, usual) for row in rows if _surely_longer(row, step)][:MOST]
    return tuple(sorted(excesses, key=lambda excess: -excess.excess_ns))


def slow_step_operators(passes: Sequence[RankPass]) -> tuple[OperatorExcess, ...]:
    """Return what takes longer in the slow steps, those nearer to the slowest than to the median one, on the rank that takes
    most of them itself.

    An operator counts where each slow step takes longer for it than every other step, by ``WORTH_SLOW`` of what those steps
    take more. Nothing where there is no slow step, or where more than a quarter of the steps are.
    """
    candidates: list[list[OperatorExcess]] = []
    for profile in (rank_pass.profile for rank_pass in passes if rank_pass.profile and rank_pass.profile.marked):
        rows = {(series.kind, series.name): np.array(series.per_step_ns, dtype=float) for series in profile.series}
        whole = rows["part", "window"]
        usual = float(np.median(whole))
        slow = whole > (usual + whole.max()) / 2
        if whole.max() < SLOW * usual or slow.sum() > whole.size / 4:
            continue
        more = float(whole[slow].mean() - np.median(whole[~slow]))
        kind: Literal["operator", "kernel"] = "kernel" if profile.source == "device" else "operator"
        excess = [
            OperatorExcess(
                rank=profile.rank,
                against=None,
                kind=kind,
                name=name,
                excess_ns=float(took[slow].mean() - np.median(took[~slow])),
                ratio=float(took[slow].mean() / rest) if (rest := float(np.median(took[~slow]))) else None,
                steps=tuple(np.array(profile.steps)[slow].tolist()),
            )
            for (of, name), took in rows.items()
            if of == kind and _is_own_work(name) and took[slow].min() > took[~slow].max()
        ]
        worth = [operator for operator in excess if operator.excess_ns >= WORTH_SLOW * more]
        candidates.append(sorted(worth, key=lambda operator: -operator.excess_ns)[:MOST])
    return tuple(max(candidates, key=lambda candidate: sum(one.excess_ns for one in candidate), default=()))


def _is_own_work(name: str) -> bool:
    """Whether it is work of the rank's own: one that others wait for takes no longer to communicate."""
    return name != OTHERS and not is_communication(name) and not name.startswith(_COLLECTIVES)


def _surely_longer(row: DiffRow, step_ns: float) -> bool:
    """Whether the late rank surely takes longer for it."""
    sure = row.p_value is not None and row.p_value < CERTAIN
    return _is_own_work(row.name) and sure and row.delta_ns >= WORTH * step_ns


def _operator_excess(row: DiffRow, rank: int, against: int) -> OperatorExcess:
    """Return what a late rank takes longer for one operator than the rank it is compared with, ns a step."""
    return OperatorExcess(
        rank=rank,
        against=against,
        kind="kernel" if row.kind == "kernel" else "operator",
        name=row.name,
        excess_ns=row.delta_ns,
        ratio=row.ratio,
        calls=row.after_calls or 0.0,
        calls_against=row.before_calls or 0.0,
    )

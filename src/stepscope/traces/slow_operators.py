"""What a late rank takes longer for than another one: operators on the CPU, kernels on a GPU, in the same profiled steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from stepscope.core.errors import UsageError
from stepscope.records.finding import OperatorExcess
from stepscope.records.trace_summary import DiffRow, RankPass
from stepscope.traces.diff import OTHERS, diff_profiles
from stepscope.traces.kernel_names import is_communication

MOST = 3
"""Of a rank: what comes after takes less."""

WORTH = 0.01
"""Of the late rank's step. Operators of two equal ranks differ by less (0.4% at most in 20 clean windows, 2026-11)."""

_COLLECTIVES = ("gloo:", "nccl:", "c10d::", "record_param_comms")
"""Operators that wait for other ranks: how their names begin."""

CERTAIN = 0.05
"""p value, corrected for all rows."""


def slow_operators(passes: Sequence[RankPass], ranks: Collection[int]) -> tuple[OperatorExcess, ...]:
    """Of each late rank against the first that is not late; nothing where either was not profiled by step."""
    profiles = {each.facts.rank: each.profile for each in passes if each.profile is not None and each.profile.marked}
    usual = next((rank for rank in sorted(profiles) if rank not in ranks), None)
    found: list[OperatorExcess] = []
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
        found += [_excess(row, rank, usual) for row in rows if _counts(row, step)][:MOST]
    return tuple(sorted(found, key=lambda each: -each.excess_ns))


def _counts(row: DiffRow, step_ns: float) -> bool:
    """Whether the late rank surely takes longer for it: a rank that others wait for takes no longer to communicate."""
    sure = row.p_value is not None and row.p_value < CERTAIN
    named = row.name != OTHERS and not is_communication(row.name) and not row.name.startswith(_COLLECTIVES)
    return named and sure and row.delta_ns >= WORTH * step_ns


def _excess(row: DiffRow, rank: int, against: int) -> OperatorExcess:
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

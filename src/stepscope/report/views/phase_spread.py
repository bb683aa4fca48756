"""The phases of a cell's step: mean, longest, and how much they vary from step to step and from rank to rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import dataclass
from stepscope.records.samples import PHASE_NAMES, PHASES
from stepscope.report.table import Column, Table, duration, percent, said, tabled
from stepscope.report.view import View
from stepscope.results.evidence import CellEvidence
from stepscope.stats.measured import common_steps

NAMES = dict(zip(PHASES, PHASE_NAMES, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSpread:
    """One phase of one cell over its timed steps and ranks, ns. share: of the mean step.

    over_steps: standard deviation of the ranks' mean from step to step; over_ranks: of the ranks' means over all steps;
    None of a single step, or rank.
    """

    group: str
    label: str
    phase: str
    mean: float
    longest: float
    share: float | None
    over_steps: float | None
    over_ranks: float | None


def spreads(cells: Iterable[CellEvidence]) -> tuple[PhaseSpread, ...]:
    """Of every cell with timed steps on all ranks: its phases, then the step."""
    return tuple(row for cell in cells for row in _of(cell))


def _of(cell: CellEvidence) -> list[PhaseSpread]:
    steps = common_steps(cell.result.samples, cell.result.spec.world_size).full
    samples = [each for each in steps.values() if each]
    if not samples:
        return []
    whole = np.array([[float(s.step_ns) for s in ranks] for ranks in samples])
    names = [name for name in PHASES if not (name == "exposed_comm" and cell.run.comm_source == "none")]
    times = {name: np.array([[float(getattr(s, f"{name}_ns")) for s in ranks] for ranks in samples]) for name in names}
    found = [_spread(cell, NAMES[name], of, float(whole.mean())) for name, of in times.items() if of.any()]
    return [*found, _spread(cell, "step", whole, float(whole.mean()))]


def _spread(cell: CellEvidence, phase: str, times: NDArray[np.float64], step: float) -> PhaseSpread:
    """times: [steps, ranks]."""
    by_step, by_rank = times.mean(axis=1), times.mean(axis=0)
    return PhaseSpread(
        group=cell.run.group,
        label=cell.run.label,
        phase=phase,
        mean=float(times.mean()),
        longest=float(times.max()),
        share=float(times.mean()) / step if step > 0 else None,
        over_steps=float(by_step.std(ddof=1)) if by_step.size > 1 else None,
        over_ranks=float(by_rank.std(ddof=1)) if by_rank.size > 1 else None,
    )


def build(cells: Sequence[CellEvidence]) -> Table:
    """One row a phase of a cell."""
    return tabled(
        "phase_times",
        "Phases over steps and ranks",
        (
            Column("group", "runs", lambda row: row.group, role="group"),
            Column("label", "run", lambda row: row.label, role="group"),
            Column("phase", "phase", lambda row: said(row.phase), role="identity", lead=True),
            Column("mean", "mean", lambda row: row.mean, duration),
            Column("share", "of the step", lambda row: row.share, percent),
            Column("longest", "longest", lambda row: row.longest, duration),
            Column("over_steps", "sd over steps", lambda row: row.over_steps, duration),
            Column("over_ranks", "sd over ranks", lambda row: row.over_ranks, duration),
        ),
        spreads(cells),
        footnotes=(
            "mean, longest: over all timed steps and ranks; sd (standard deviation, its square is the variance): of the"
            " ranks' mean from step to step, and of each rank's mean over the steps.",
        ),
    )


VIEW = View(key="phase_spread", title="Phases over steps and ranks", needs=("cells",), table=build)

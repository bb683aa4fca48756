"""What a step's time goes into: its phases, one bar a run."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.records.samples import PHASE_NAMES
from stepscope.records.samples import PHASES as SAMPLED
from stepscope.records.training import PhaseTimes, TrainingRun
from stepscope.report.vega import color
from stepscope.report.view import Figures, View
from stepscope.report.views._runs import by_dataset, failure, time_unit
from stepscope.report.views._stacks import MAX_ROWS, StackRow, Stacks, failed_text, stacks_chart

_HUES = ("k-wait", "k-forward", "k-compute", "k-exposed", "k-copies", "k-other")
PHASES = tuple((f"{key}_ns", name, color(hue)) for key, name, hue in zip(SAMPLED, PHASE_NAMES, _HUES, strict=True))


def prepare(runs: Sequence[TrainingRun]) -> tuple[Stacks, ...]:
    """One chart a data set (and model, where there are many): medians of the slowest rank's phases in ns."""
    shown = [run for run in runs if run.phases is not None or run.status != "ok"]
    charts = []
    for part in by_dataset(shown, MAX_ROWS):
        mine = part.runs
        sums = [sum(_phases(run.phases)) for run in mine if run.phases is not None]
        if len(sums) < 2:
            continue
        scale, unit = time_unit(max(sums))
        charts.append(
            Stacks(
                key=part.key,
                title=part.title,
                kinds=PHASE_NAMES,
                colors=tuple(color for _, _, color in PHASES),
                rows=tuple(_row(run, name) for run, name in part.named),
                axis=f"time per step ({unit})",
                scale=scale,
            )
        )
    return tuple(charts)


def _phases(phases: PhaseTimes) -> tuple[float, ...]:
    return tuple(getattr(phases, field) for field, _, _ in PHASES)


def _row(run: TrainingRun, name: str) -> StackRow:
    if run.phases is None or run.status != "ok":
        return StackRow(name=name, failure=failure(run) or "not measured")
    parts = _phases(run.phases)
    return StackRow(name=name, parts=parts, text=format_duration(sum(parts)))


def caption(data: Stacks) -> str:
    said = []
    for row in [row for row in data.rows if row.failure is None][:5]:
        share, kind = max(
            (part / (sum(row.parts) or 1.0), kind) for part, kind in zip(row.parts, data.kinds, strict=True)
        )
        said.append(f"{row.name}: {format_percent(share)} {kind}")
    return (
        f"Phases of a step on {data.title}, {counted(len(data.rows), 'run')}: medians over the steps of each phase on its"
        f" slowest rank, so that a bar need not be as long as the median step. Largest part: {'; '.join(said)}."
        f"{failed_text(data.rows)}"
    )


VIEW = View(
    key="step_budget",
    title="Time budget of a step",
    figures=Figures(needs=("runs",), prepare=prepare, chart=stacks_chart, caption=caption),
)

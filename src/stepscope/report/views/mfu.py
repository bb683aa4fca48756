"""How much of the devices' peak runs use."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.training import TrainingRun
from stepscope.report.vega import COLORS
from stepscope.report.view import Figures, View
from stepscope.report.views._runs import by_dataset
from stepscope.report.views._stacks import MAX_ROWS, StackRow, Stacks, stacks_chart
from stepscope.results.mfu import CONVENTION


def prepare(runs: Sequence[TrainingRun]) -> tuple[Stacks, ...]:
    """One chart a data set, where runs differ."""
    charts = []
    for part in by_dataset([run for run in runs if run.mfu is not None and run.status == "ok"], MAX_ROWS):
        known = [run.mfu or 0.0 for run in part.runs]
        if len({format_percent(value) for value in known}) < 2:
            continue
        rows = tuple(
            StackRow(name=name, parts=(value,), text=format_percent(value))
            for (_, name), value in zip(part.named, known, strict=True)
        )
        charts.append(
            Stacks(
                key=part.key,
                title=part.title,
                kinds=("MFU",),
                colors=(COLORS[0],),
                rows=rows,
                axis="MFU: share of the devices' dense peak (%)",
                scale=100.0,
            )
        )
    return tuple(charts)


def caption(data: Stacks) -> str:
    rows = sorted(data.rows, key=lambda row: -row.parts[0])
    return (
        f"Share of the devices' peak that the model's FLOP use on {data.title}, {counted(len(rows), 'run')}; most: "
        f"{rows[0].name} with {rows[0].text}, least: {rows[-1].name} with {rows[-1].text}. MFU: {CONVENTION}."
    )


VIEW = View(
    key="mfu",
    title="Model FLOP utilisation",
    figures=Figures(needs=("runs",), prepare=prepare, chart=stacks_chart, caption=caption),
)

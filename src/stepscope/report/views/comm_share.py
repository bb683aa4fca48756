"""Where a step goes: computation against communication that nothing hides."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.records.training import TrainingRun
from stepscope.report.vega import color
from stepscope.report.view import Figures, View
from stepscope.report.views._runs import by_dataset, failure
from stepscope.report.views._stacks import MAX_ROWS, StackRow, Stacks, failed_text, stacks_chart
from stepscope.results.figures import exposed_fraction


def prepare(runs: Sequence[TrainingRun]) -> tuple[Stacks, ...]:
    """Shares of the median step on several ranks, or of the epoch where only that was timed. The interval of the exposed
    part lies around the end of the first."""
    charts = []
    several = [run for run in runs if run.world_size is not None and run.world_size > 1]
    shown = [run for run in several if run.status != "ok" or exposed_fraction(run) is not None]
    for part in by_dataset(shown, MAX_ROWS):
        mine = part.runs
        if sum(run.status == "ok" for run in mine) < 2:
            continue
        charts.append(
            Stacks(
                key=part.key,
                title=part.title,
                kinds=("computation and the rest", "exposed communication"),
                colors=(color("k-compute"), color("k-exposed")),
                rows=tuple(_row(run, name) for run, name in part.named),
                axis="share of the step (%)",
                scale=100.0,
                whole=1.0,
            )
        )
    return tuple(charts)


def _row(run: TrainingRun, name: str) -> StackRow:
    share = exposed_fraction(run)
    if run.status != "ok" or share is None:
        return StackRow(name=name, failure=failure(run))
    low, high = _interval(run)
    return StackRow(name=name, parts=(1.0 - share, share), low=low, high=high, text=format_percent(share, digits=0))


def _interval(run: TrainingRun) -> tuple[float | None, float | None]:
    """Where the computation ends by the interval of the exposed part; None without one."""
    exposed, step = run.exposed_comm_ns, run.step_ns
    if exposed is None or step is None or exposed.low is None or exposed.high is None:
        return None, None
    return max(0.0, 1.0 - exposed.high / step.value), max(0.0, 1.0 - exposed.low / step.value)


def caption(data: Stacks) -> str:
    done = sorted((row for row in data.rows if row.failure is None), key=lambda row: -row.parts[1])
    text = (
        f"Computation against exposed communication in a step on {data.title},"
        f" {counted(len(data.rows), 'run')} on several ranks. Most communication shows in {done[0].name}:"
        f" {done[0].text} of the step"
    )
    text += f"; least in {done[-1].name}: {done[-1].text}." if len(done) > 1 else "."
    if any(row.low is not None for row in done):
        text += " Whiskers: 95% interval of the exposed part."
    return text + failed_text(data.rows)


VIEW = View(
    key="comm_share",
    title="Computation against communication",
    figures=Figures(needs=("runs",), prepare=prepare, chart=stacks_chart, caption=caption),
)

"""Runs of the same matrix over time: each cell's step in every run, and the run since which it is different."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import Unavailable
from stepscope.core.units import format_percent
from stepscope.core.words import counted
from stepscope.report.names import clean
from stepscope.report.shared.curves import CurvePoint, RunCurve, RunCurves, curves_chart
from stepscope.report.shared.runs import names
from stepscope.report.table import Column, Table, Tone, Value, duration, said, tabled, whole
from stepscope.report.vega import MAX_LINES
from stepscope.report.view import Charts, View
from stepscope.stats.order import SIGNIFICANT, ChangePoint

if TYPE_CHECKING:
    from stepscope.results.history import CellHistory, History


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryChart(RunCurves):
    """Each cell's step / its median. change: what is said of all cells together."""

    change: str


def _names(history: History) -> tuple[str, ...]:
    return names([cell.run for cell in history.cells if cell.run is not None])


def change_text(history: History, cell: CellHistory) -> str:
    """``+20% since nightly-5 (2026-11-05), p = 0.004``; why nothing changed, or why nobody can say."""
    found = cell.change
    if isinstance(found, Unavailable):
        return f"not tested: {found.reason}"
    if cell.since is None:
        return f"no significant change (p = {found.p_value:.2g})"
    return f"{_step(found)} since {_named(history, cell.since)}, p = {found.p_value:.2g}"


def _step(found: ChangePoint) -> str:
    change = found.after / found.before - 1
    return ("+" if change > 0 else "-") + format_percent(abs(change))


def _named(history: History, at: int) -> str:
    run = history.runs[at]
    return f"{clean(run.name, 60)} ({run.created[:10]})"


def build(history: History | None) -> Table:
    """One row a cell, and one for all together where there are several."""
    rows = [] if history is None else list(zip(history.cells, _names(history), strict=True))
    footnotes: tuple[str, ...] = ()
    common = Value(text="", raw=None)
    if history is not None:
        common = said(change_text(history, history.common), None)
        footnotes = (
            f"{counted(len(history.runs), 'run')} from {_named(history, 0)} to {_named(history, len(history.runs) - 1)};"
            f" all cells together (median of step / the cell's median): {common.text}",
            "change: the split with the least squares; p by a permutation test of rank sums"
            + (
                f"; p of a cell times {len(history.cells)} cells"
                if len(history.cells) > 1 and history.common.since is None
                else ""
            ),
        )

    def last(cell: CellHistory) -> float:
        return [step for step in cell.step_ns if step is not None][-1]

    def change(cell: CellHistory) -> Value:
        assert history is not None
        ratio = (
            None
            if cell.since is None or isinstance(cell.change, Unavailable)
            else cell.change.after / cell.change.before - 1
        )
        tone: Tone = "plain" if ratio is None else "bad" if ratio > 0 else "good"
        text = change_text(history, cell)
        return Value(text=text, raw=text, tone=tone)

    return tabled(
        "history",
        "Runs over time",
        (
            Column("cell", "cell", lambda row: row[1], role="identity", lead=True),
            Column("runs", "runs", lambda row: sum(step is not None for step in row[0].step_ns), whole),
            Column("first_ns", "first step", lambda row: next(s for s in row[0].step_ns if s is not None), duration),
            Column("last_ns", "last step", lambda row: last(row[0]), duration),
            Column("change", "change", lambda row: change(row[0])),
        ),
        rows,
        footnotes=footnotes,
    )


def prepare(history: History) -> tuple[HistoryChart, ...]:
    """One chart: of more cells than lines can be told apart, those that changed most."""
    pairs = sorted(zip(history.cells, _names(history), strict=True), key=lambda pair: -_spread(pair[0]))[:MAX_LINES]
    lines = tuple(RunCurve(name=name, points=_points(cell)) for cell, name in pairs)
    since = history.common.since
    shown = f" ({len(lines)} of {len(history.cells)} cells)" if len(lines) < len(history.cells) else ""
    return (
        HistoryChart(
            key="steps", title=f"{len(history.runs)} runs{shown}", curves=lines, x_axis="run, oldest first",
            y_axis="step time (% of the cell's median)", scale=100.0, marked=None if since is None else since + 0.5,
            change=f"{_named(history, 0)} to {_named(history, len(history.runs) - 1)}; all cells together:"
            f" {change_text(history, history.common)}",
        ),
    )  # fmt: skip


def _known(cell: CellHistory) -> Sequence[float]:
    return sorted(step for step in cell.step_ns if step is not None)


def _spread(cell: CellHistory) -> float:
    steps = _known(cell)
    return steps[-1] / steps[0]


def _points(cell: CellHistory) -> tuple[CurvePoint, ...]:
    steps = _known(cell)
    middle = (steps[(len(steps) - 1) // 2] + steps[len(steps) // 2]) / 2
    return tuple(CurvePoint(x=n, y=step / middle) for n, step in enumerate(cell.step_ns, start=1) if step is not None)


def caption(data: HistoryChart) -> str:
    dashed = f" Dashed line: the change (p below {SIGNIFICANT:g})." if data.marked is not None else ""
    return (
        f"Step time of every cell over the runs of one matrix, {data.change}.{dashed}"
        " Cells that look the same are one line."
    )


VIEWS = (
    View(
        "history",
        "Runs over time",
        needs=("history",),
        table=build,
        charts=Charts(("history",), prepare, curves_chart, caption),
    ),
)

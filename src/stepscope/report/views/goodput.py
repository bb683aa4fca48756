"""Where the wall time of a profiled job went, from its first process to its end, across restarts."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_duration, format_percent
from stepscope.core.words import counted
from stepscope.report.table import Column, Table, duration, group_column, lead_column, percent, tabled
from stepscope.report.views import View
from stepscope.results.figures import figures_of
from stepscope.results.goodput import PARTS, Goodput, goodput
from stepscope.results.profiled_job import ProfiledJob


def build(profiled: Sequence[ProfiledJob]) -> Table:
    """Return the table: one row a part of the wall time that is there."""
    jobs = [(job, budget) for job in profiled if not isinstance(budget := goodput(job), Unavailable)]
    rows = [
        (job, budget, figure, budget.parts_ns[part])
        for job, budget in jobs
        for part, figure in zip(PARTS, figures_of("wall").values(), strict=True)
        if part == "productive" or budget.parts_ns[part] > 0
    ]
    return tabled(
        "goodput",
        "Goodput: where the wall time went",
        rows,
        group_column("job", "job", "0.name"),
        lead_column(
            "part", "part", lambda row: "productive steps" if row[2].key == "goodput_fraction" else row[2].title
        ),
        Column("time", "time", "3", duration),
        Column("wall_share", "of wall time", lambda row: row[2].read(row[1]), percent),
        Column("meaning", "what it is", lambda row: row[2].help.removeprefix("of the wall time: ")),
        footnotes=tuple(_goodput_footnote(budget) for _, budget in jobs),
    )


def _goodput_footnote(budget: Goodput) -> str:
    """Say the wall time, attempts, ranks, and what a restart lost."""
    text = f"{format_duration(budget.wall_ns)} of wall time, {counted(budget.steps, 'step')}"
    if budget.restarts:
        lost = format_percent(budget.share("repeated"))
        text += f", {counted(budget.restarts, 'restart')}: {counted(budget.repeated_steps, 'step')} lost ({lost})"
        if not budget.saved:
            text += "; no checkpoint was seen, so a restart loses all steps before it"
    if len(set(budget.worlds)) > 1:
        text += f"; ranks: {', then '.join(map(str, budget.worlds))}"
    return text


VIEWS = (View("goodput", table=build),)

"""Exposed communication of a profiled job by process group and operation."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.records.nouns import EXPOSED_COMM
from stepscope.report.table import Column, Table, duration, group_column, lead_column, number, tabled
from stepscope.report.views import View
from stepscope.results.group_waits import group_waits
from stepscope.results.profiled_job import ProfiledJob


def build(profiled: Sequence[ProfiledJob]) -> Table:
    """Return the table: one row a group's name and operation, the longest first.

    There are none of a job that waits for one group in one operation.
    """
    rows = [(job, group_wait) for job in profiled if job.steps is not None for group_wait in group_waits(job.steps)]
    return tabled(
        "group_waits",
        f"{EXPOSED_COMM.capitalize()} by process group",
        rows,
        group_column("job", "job", "0.name"),
        lead_column("group", "group", "1.group"),
        Column("operation", "operation", "1.operation"),
        Column("group_ranks", "ranks of a group", "1.ranks", number),
        Column("ranks", "ranks in such a group", "1.of_ranks", number),
        Column("step", "a step", "1.ns", duration),
        Column("waiting", "of it waiting", "1.waiting_ns", duration),
        Column("calls", "waits a step", "1.calls", number),
        footnotes=(
            f"means of all ranks: the {EXPOSED_COMM} of a timed step, divided as all waits are",
            "waiting: beyond the rank of the group that waits shortest, of operations that all of them end together",
        ),
    )


VIEWS = (View("group_waits", table=build),)

"""The same runs on different machines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from stepscope.records.training import TrainingRun
from stepscope.report.names import clean
from stepscope.report.views._common import Figures, View
from stepscope.report.views._groups import (
    BarGroups,
    Comparison,
    compare,
    faster,
    groups_caption,
    groups_chart,
)
from stepscope.report.views._runs import facets, grouped


def prepare(runs: Sequence[TrainingRun], drop_epochs: int = 1) -> tuple[BarGroups, ...]:
    """One chart a model and data set: groups of strategy and ranks, a bar for each machine.

    Runs of one device that come from several sources are told apart by their source: two nodes, two days, two drivers.
    """
    sources = grouped(runs, lambda run: facets(run)["hardware"])
    several = {name for name, mine in sources.items() if len({_file(run) for run in mine}) > 1}

    def machine(run: TrainingRun) -> str:
        name = facets(run)["hardware"]
        if not name:
            return ""
        return f"{name}, {clean(_file(run), 24)}" if name in several else name

    how = Comparison(along="hardware", value=machine, label=faster)
    return compare(runs, how, drop_epochs=drop_epochs)


def _file(run: TrainingRun) -> str:
    """Name of the run's source, without the line (``results.md:52``) that some importers add."""
    name, colon, line = PurePath(run.source).name.rpartition(":")
    return name if colon and line.isdigit() else PurePath(run.source).name


def caption(data: BarGroups) -> str:
    return groups_caption(data, "Machines compared")


VIEW = View(
    key="hardware",
    title="Hardware",
    figures=Figures(
        needs=("runs",),
        wants=("drop_epochs",),
        prepare=prepare,
        chart=groups_chart,
        caption=caption,
    ),
)

"""The same runs on different machines.

Runs of one device that come from several sources are told apart by their source: two nodes, two days, two drivers.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from stepscope.core.words import grouped
from stepscope.records.training import TrainingRun
from stepscope.report.names import clean
from stepscope.report.views._groups import BarComparison, compared, faster
from stepscope.report.views._runs import facets


def _on_machines(runs: Sequence[TrainingRun]) -> BarComparison:
    sources = grouped(runs, lambda run: facets(run)["hardware"])
    several = {name for name, mine in sources.items() if len({_file(run) for run in mine}) > 1}

    def machine(run: TrainingRun) -> str:
        name = facets(run)["hardware"]
        return f"{name}, {clean(_file(run), 24)}" if name and name in several else name

    return BarComparison(along="hardware", own=machine, label=faster)


def _file(run: TrainingRun) -> str:
    """Name of the run's source, without the line (``results.md:52``) that some importers add."""
    name, colon, line = PurePath(run.source).name.rpartition(":")
    return name if colon and line.isdigit() else PurePath(run.source).name


VIEW = compared("hardware", "Hardware", "Machines compared", _on_machines)

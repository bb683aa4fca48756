"""Experiments, ONE FILE EACH: a preset's matrix, what to expect of it, and what was measured beside it."""

from __future__ import annotations

from dataclasses import replace

from stepscope.core.registry import Registry
from stepscope.core.words import grouped
from stepscope.results.evidence import Evidence
from stepscope.results.experiments._common import Expectation, Experiment, Verdict

__all__ = ["REGISTRY", "Expectation", "Experiment", "Verdict", "checks_of", "experiment_names", "experiment_of"]

REGISTRY: Registry[Experiment] = Registry("stepscope.results.experiments", "EXPERIMENT", "experiment")


def experiment_names() -> tuple[str, ...]:
    """Names as presets have them: ``alpha-beta`` for ``alpha_beta.py``."""
    return tuple(name.replace("_", "-") for name in REGISTRY.names())


def experiment_of(preset: str) -> Experiment | None:
    """The experiment of this name; None where a matrix asks nothing."""
    return REGISTRY.load(preset.replace("-", "_")) if preset in experiment_names() else None


def checks_of(evidence: Evidence) -> tuple[Expectation, ...]:
    """What the experiments among the run folders expected and found of their own cells, in the order of their figures."""
    of_name: dict[str, set[str]] = {}
    for record in evidence.records:
        if record.kind == "bench":
            of_name.setdefault(record.name, set()).update(record.cells, record.earlier_cells)
    checks: list[Expectation] = []
    for name, ids in of_name.items():
        if (found := experiment_of(name)) is not None:
            folders = grouped((cell for cell in evidence.cells if cell.cell_id in ids), lambda cell: cell.run.source)
            checks += [
                check for mine in folders.values() for check in found.judge(replace(evidence, cells=tuple(mine)))
            ]
    return tuple(checks)

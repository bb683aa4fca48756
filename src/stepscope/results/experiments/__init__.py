"""Experiments, ONE FILE EACH: a preset's matrix, what to expect of it, and what was measured beside it."""

from __future__ import annotations

from stepscope.core.registry import Registry
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
    """What the experiments among the run folders expected and found, in the order of their figures."""
    named = dict.fromkeys(record.name for record in evidence.records if record.kind == "bench")
    found = (experiment_of(name) for name in named)
    return tuple(check for each in found if each is not None for check in each.judge(evidence))

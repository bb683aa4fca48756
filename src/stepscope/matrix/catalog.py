"""The plugins that a matrix may name; a ``group`` is a key of ``OPTION_GROUPS``, whose owner brings its options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope import datasets, strategies, workloads
from stepscope.core.errors import UsageError
from stepscope.core.registry import Registry
from stepscope.records.options import OptionsModel
from stepscope.records.plan import ModelFacts
from stepscope.records.precision import parameter_dtype

FAMILIES: dict[str, Registry[Any]] = {
    "model": workloads.REGISTRY, "dataset_options": datasets.REGISTRY, "strategy_options": strategies.REGISTRY,
}  # fmt: skip
"""The registry whose entries bring the options of a group."""


def refuses(group: str, name: str) -> str | None:
    """Say why the group's owner cannot be called so, or None where it can."""
    registry = FAMILIES[group]
    if name in registry.shipped:
        return None
    try:
        registry.load(name)
    except UsageError as error:
        return error.line
    return None


def options_of(group: str, name: str) -> type[OptionsModel]:
    """Return the option schema of an entry; asked only of names that a matrix uses."""
    schema: type[OptionsModel] = FAMILIES[group].load(name).options
    return schema


def implied(workload: str) -> Mapping[str, str]:
    """Return the cell keys that a workload fills where the matrix leaves them open; none but for a user's own model."""
    return workloads.IMPLIED if workload.startswith(workloads.PREFIX) else {}


def misfit(workload: str, model: OptionsModel, dataset: str, options: OptionsModel) -> str | None:
    """Say why this dataset cannot feed this model, or None when it can."""
    brings, own = workload.startswith(workloads.PREFIX), workloads.IMPLIED["dataset"]
    if brings != (dataset == own):
        return f"{own} {'is the only dataset for' if brings else 'is for'} a python: workload"
    try:
        FAMILIES["dataset_options"].load(dataset).resolve(options, FAMILIES["model"].load(workload).needs(model))
    except UsageError as error:
        return "; ".join(part for part in (error.what, error.why, error.fix) if part)
    return None


def facts_of(workload: str, model: OptionsModel, dataset: str, options: OptionsModel, *, precision: str) -> ModelFacts:
    """Return parameters and FLOP of the model as this dataset and precision make it."""
    family = FAMILIES["model"].load(workload)
    needs = FAMILIES["dataset_options"].load(dataset).resolve(options, family.needs(model))
    facts: ModelFacts = family.facts(model, needs, parameter_dtype(precision))
    return facts

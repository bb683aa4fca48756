"""The plugins that a matrix may name: the three registries, or others in their place in a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepscope import datasets, strategies, workloads
from stepscope.core.errors import UsageError
from stepscope.core.registry import Registry
from stepscope.datasets import Dataset
from stepscope.records.options import OptionsModel
from stepscope.records.plan import ModelFacts
from stepscope.records.precision import parameter_dtype
from stepscope.strategies import Strategy
from stepscope.workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Workloads, strategies and datasets; a ``group`` is a key of ``OPTION_GROUPS``, whose owner brings its options."""

    workloads: Registry[Workload] = workloads.REGISTRY
    strategies: Registry[Strategy] = strategies.REGISTRY
    datasets: Registry[Dataset] = datasets.REGISTRY

    def family(self, group: str) -> Registry[Any]:
        """Return the registry whose entries bring the options of ``model``, ``dataset_options`` or ``strategy_options``."""
        families: dict[str, Registry[Any]] = {
            "model": self.workloads, "dataset_options": self.datasets, "strategy_options": self.strategies,
        }  # fmt: skip
        return families[group]

    def refuses(self, group: str, name: str) -> str | None:
        """Say why the group's owner cannot be called so, or None where it can."""
        registry = self.family(group)
        if name in registry.shipped:
            return None
        try:
            registry.load(name)
        except UsageError as error:
            return error.line
        return None

    def options(self, group: str, name: str) -> type[OptionsModel]:
        """Return the option schema of an entry; asked only of names that a matrix uses."""
        schema: type[OptionsModel] = self.family(group).load(name).options
        return schema

    def implied(self, workload: str) -> Mapping[str, str]:
        """Return the cell keys that a workload fills where the matrix leaves them open; none but for a user's own model."""
        return workloads.IMPLIED if workload.startswith(workloads.PREFIX) else {}

    def misfit(self, workload: str, model: OptionsModel, dataset: str, options: OptionsModel) -> str | None:
        """Say why this dataset cannot feed this model, or None when it can."""
        brings, own = workload.startswith(workloads.PREFIX), workloads.IMPLIED["dataset"]
        if brings != (dataset == own):
            return f"{own} {'is the only dataset for' if brings else 'is for'} a python: workload"
        try:
            self.datasets.load(dataset).resolve(options, self.workloads.load(workload).needs(model))
        except UsageError as error:
            return "; ".join(part for part in (error.what, error.why, error.fix) if part)
        return None

    def facts(
        self, workload: str, model: OptionsModel, dataset: str, options: OptionsModel, *, precision: str
    ) -> ModelFacts:
        """Return parameters and FLOP of the model as this dataset and precision make it."""
        family = self.workloads.load(workload)
        needs = self.datasets.load(dataset).resolve(options, family.needs(model))
        return family.facts(model, needs, parameter_dtype(precision))


CATALOG = Catalog()
"""The installed plugins."""

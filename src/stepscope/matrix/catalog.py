"""The plugins that a matrix may name: the three registries, or others in their place in a test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepscope import datasets, strategies, workloads
from stepscope.config.options import OptionsModel
from stepscope.config.precision import parameter_dtype
from stepscope.config.vocabulary import Family, Vocabulary
from stepscope.core.errors import UsageError
from stepscope.datasets import Dataset
from stepscope.records.plan import ModelFacts
from stepscope.strategies import Strategy
from stepscope.workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Names (listed without importing) and loaders of workloads, strategies and datasets."""

    workload_names: Callable[[], tuple[str, ...]] = workloads.REGISTRY.names
    strategy_names: Callable[[], tuple[str, ...]] = strategies.REGISTRY.names
    dataset_names: Callable[[], tuple[str, ...]] = datasets.REGISTRY.names
    workload: Callable[[str], Workload] = workloads.REGISTRY.load
    strategy: Callable[[str], Strategy] = strategies.REGISTRY.load
    dataset: Callable[[str], Dataset] = datasets.REGISTRY.load

    def vocabulary(self) -> Vocabulary:
        """What the config layer needs to know of the registries, as plain data."""
        return Vocabulary(
            workloads=Family(
                kind="workload",
                names=self.workload_names(),
                options=lambda key: self.workload(key).options,
                prefix=workloads.PREFIX,
            ),
            strategies=Family(
                kind="strategy", names=self.strategy_names(), options=lambda key: self.strategy(key).options
            ),
            datasets=Family(kind="dataset", names=self.dataset_names(), options=lambda key: self.dataset(key).options),
            losses=lambda key: self.workload(key).losses,
            misfit=self.misfit,
            implied=lambda key: workloads.IMPLIED if key.startswith(workloads.PREFIX) else {},
        )

    def misfit(self, workload: str, model: OptionsModel, dataset: str, options: OptionsModel) -> str | None:
        """Why this dataset cannot feed this model; None when it can."""
        brings, own = workload.startswith(workloads.PREFIX), workloads.IMPLIED["dataset"]
        if brings != (dataset == own):
            return f"{own} {'is the only dataset for' if brings else 'is for'} a python: workload"
        try:
            self.dataset(dataset).resolve(options, self.workload(workload).needs(model))
        except UsageError as error:
            parts = (error.what, error.why, error.fix)
            return "; ".join(part for part in parts if part)
        return None

    def facts(
        self, workload: str, model: OptionsModel, dataset: str, options: OptionsModel, *, precision: str
    ) -> ModelFacts:
        """Parameters and FLOP of the model as this dataset and precision make it."""
        family = self.workload(workload)
        needs = self.dataset(dataset).resolve(options, family.needs(model))
        return family.facts(model, needs, parameter_dtype(precision))


CATALOG = Catalog()
"""The installed plugins."""

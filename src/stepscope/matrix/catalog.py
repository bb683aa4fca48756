"""The plugins that a matrix may name: the three registries, or others in their place in a test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stepscope import datasets, strategies, workloads
from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.datasets import Dataset
from stepscope.records.options import OptionsModel
from stepscope.records.plan import ModelFacts
from stepscope.records.precision import parameter_dtype
from stepscope.strategies import Strategy
from stepscope.workloads import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The entries of one registry.

    kind: what to call one of them in a message (``workload``).
    options(name): the option schema of an entry; called only for names that a matrix uses.
    prefix: what every name begins with that stands for itself and is listed nowhere (``python:``).
    """

    kind: str
    names: tuple[str, ...]
    options: Callable[[str], type[OptionsModel]]
    prefix: str | None = None

    def refuses(self, name: str) -> str | None:
        """Why there is no such entry; None where there is."""
        if self.prefix is None or not name.startswith(self.prefix):
            return None if name in self.names else unknown(self.kind, name, self.names)
        try:
            self.options(name)
        except UsageError as error:
            return error.line
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Everything that a matrix may name.

    losses(workload): the losses it can be trained with, the default first.
    misfit(workload, its options, dataset, its options): why this data cannot feed this model, None when it can.
    implied(workload): cell keys that it fills where the matrix leaves them open; none but for a user's own model.
    """

    workloads: Family
    strategies: Family
    datasets: Family
    losses: Callable[[str], tuple[str, ...]]
    misfit: Callable[[str, OptionsModel, str, OptionsModel], str | None]
    implied: Callable[[str], Mapping[str, str]] = lambda _: {}


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

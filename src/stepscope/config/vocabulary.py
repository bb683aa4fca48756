"""The words a matrix may use, handed in from above: the registries lie in layers that config must not import."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stepscope.config.options import OptionsModel


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """The entries of one registry.

    kind: what to call one of them in a message (``workload``).
    options(name): the option schema of an entry; called only for names that a matrix uses.
    """

    kind: str
    names: tuple[str, ...]
    options: Callable[[str], type[OptionsModel]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Everything that a matrix may name.

    losses(workload): the losses it can be trained with, the default first.
    misfit(workload, its options, dataset, its options): why this data cannot feed this model, None when it can.
    """

    workloads: Family
    strategies: Family
    datasets: Family
    losses: Callable[[str], tuple[str, ...]]
    misfit: Callable[[str, OptionsModel, str, OptionsModel], str | None]

"""The words a matrix may use, handed in from above: the registries lie in layers that config must not import."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from stepscope.config.options import OptionsModel
from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown


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

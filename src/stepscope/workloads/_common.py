"""What every workload promises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from stepscope.config.options import OptionsModel
from stepscope.records.plan import InputNeeds, ModelFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model family's promise.

    needs(options): what its input looks like when the dataset leaves it open (features, classes, sequence, vocabulary).
    facts(options, data, dtype): exact parameters and FLOP for inputs of shape ``data`` and parameters of ``dtype``.
    label(options): short name of this very model for tables, such as ``mlp small``.
    default_loss: ``ce`` or ``mse``.
    """

    key: str
    summary: str
    options: type[OptionsModel]
    needs: Callable[[Any], InputNeeds]
    facts: Callable[[Any, InputNeeds, str], ModelFacts]
    label: Callable[[Any], str]
    losses: tuple[str, ...] = ("ce",)

"""``python:MODULE:FUNCTION``: the spec of a user's own model, whose sizes and FLOP are measured (rank/own)."""

from __future__ import annotations

import re
from typing import NoReturn

from pydantic import ConfigDict

from stepscope.config.options import OptionsModel
from stepscope.core.errors import UsageError
from stepscope.core.registry import Registry
from stepscope.records.plan import OWN_INPUT, InputNeeds
from stepscope.workloads._common import Workload

PREFIX = "python:"
IMPLIED = {"dataset": "batches", "optimizer": "own"}
"""Cell keys that such a workload fills where the matrix leaves them open."""

_KEY = re.compile(r"python:([^\W\d]\w*(?:\.[^\W\d]\w*)*):([^\W\d]\w*)")


class Arguments(OptionsModel):
    """Keyword arguments of the user's function, whatever they are called."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)


def own_names(key: str) -> tuple[str, str]:
    """(module, function) of ``python:package.module:build``. Raises UsageError."""
    found = _KEY.fullmatch(key)
    if found is None:
        raise UsageError(
            f"{key.removeprefix(PREFIX)!r} does not name a function of a module",
            fix="write MODULE:FUNCTION, such as models:build",
        )
    return found[1], found[2]


def own_workload(key: str) -> Workload:
    """The spec of a user's model. Raises UsageError for a malformed key."""
    module, function = own_names(key)

    def facts(options: Arguments, data: InputNeeds, dtype: str) -> NoReturn:  # noqa: ARG001
        raise UsageError(f"the sizes of {key} are unknown here: they are measured when the plan is made")

    return Workload(
        key=key,
        summary=f"{function}() of {module}",
        options=Arguments,
        needs=lambda _: InputNeeds(kind=OWN_INPUT),
        facts=facts,
        label=lambda _: f"{module.rpartition('.')[2]}.{function}",
        losses=("own",),
    )


class Workloads(Registry[Workload]):
    """The registry, and every function that a key names."""

    __slots__ = ()

    def load(self, key: str) -> Workload:
        return own_workload(key) if key.startswith(PREFIX) else Registry.load(self, key)

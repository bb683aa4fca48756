"""The batches of a user's own model: made by the ``batch`` that its function brings, or drawn at random. No files.

Nothing is prepared here: the rank half makes them (rank/loading.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field, field_validator

from stepscope.core.errors import UsageError
from stepscope.datasets._common import Dataset, Prepared, Split
from stepscope.records.options import OptionsModel
from stepscope.records.plan import OWN_INPUT, InputNeeds

_INPUT = re.compile(r"(\d+(?:x\d+)*)(?::(\d+))?")


@dataclass(frozen=True, slots=True)
class InputShape:
    """One random sample. ids_below: normally distributed floats when None, else ids from 0 to below it."""

    shape: tuple[int, ...]
    ids_below: int | None


def parse_input(text: str) -> InputShape:
    """Read a shape such as ``3x224x224`` or ``128:50257``. Raises ValueError."""
    match = _INPUT.fullmatch(text)
    if match is None:
        raise ValueError(
            f"{text!r} is not a sample shape: write 3x224x224 for floats, 128:50257 for 128 ids below 50257"
        )
    return InputShape(tuple(int(side) for side in match[1].split("x")), int(match[2]) if match[2] else None)


class Options(OptionsModel):
    input: str | None = Field(
        default=None,
        description="shape of a random sample, where the model brings no batches: 3x224x224, or 128:50257 for ids",
    )
    distinct: int = Field(
        default=16,
        ge=0,
        description="micro-batches that each rank makes before the first step and cycles through; 0: a new one each time",
    )

    @field_validator("input")
    @classmethod
    def _is_a_shape(cls, text: str | None) -> str | None:
        if text is not None:
            parse_input(text)
        return text


def resolve(options: Options, needs: InputNeeds) -> InputNeeds:  # noqa: ARG001
    if needs.kind != OWN_INPUT:
        raise UsageError("batches is for a python: workload")
    return needs


def digest(options: Options, files: dict[str, Path]) -> str:  # noqa: ARG001
    """Return a constant: the digest of the model's source stands for what its function makes."""
    return ""


def prepare(options: Options, needs: InputNeeds, files: dict[str, Path], cache_dir: Path) -> Prepared:  # noqa: ARG001
    nothing = Split(x=np.empty((0, 0)), y=np.empty(0))
    return Prepared(train=nothing, test=nothing, real_labels=False)


DATASET = Dataset(
    key="batches",
    summary="what the function of a python: workload makes, or random samples of a given shape",
    options=Options,
    resolve=resolve,
    locate=lambda options, data_dir: {},  # noqa: ARG005
    digest=digest,
    prepare=prepare,
)

"""The cross product: from a matrix file's sections to raw cells, each a mapping of dotted keys to given values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from stepscope.config.matrix_file import Axis, GivenValue, MatrixFile
from stepscope.config.problems import Path, path_text

MAX_CELLS = 10_000
"""More cells than anybody measures; a cross product beyond it is a slip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCell:
    """One cell before defaults: which value the file gives to which key. ``origin`` is ``axes`` or ``include[0]``."""

    origin: Path
    values: Mapping[str, GivenValue]

    @property
    def label(self) -> str:
        return path_text(self.origin)


def count_cells(file: MatrixFile) -> int:
    """Cells of the cross products, before anything is dropped, excluded or counted once."""
    own = math.prod(len(axis.points) for axis in file.axes)
    included = sum(math.prod(len(axis.points) for axis in item.axes) for item in file.include)
    return included + (own if file.axes or not file.include else 0)


def raw_cells(file: MatrixFile) -> Iterator[RawCell]:
    """The cross product of the axes over the base in file order (the last axis turns fastest), then the includes.

    Without axes the base alone is one cell, unless there are includes: then it is only what they build on.
    """
    base = {given.key: given for given in file.base}
    if file.axes or not file.include:
        for point in _product(file.axes):
            yield RawCell(origin=("axes",) if file.axes else ("base",), values=base | point)
    for item in file.include:
        own = base | {given.key: given for given in item.values}
        for point in _product(item.axes):
            yield RawCell(origin=item.path, values=own | point)


def _product(axes: tuple[Axis, ...]) -> Iterator[dict[str, GivenValue]]:
    for points in itertools.product(*(axis.points for axis in axes)):
        yield {given.key: given for point in points for given in point}

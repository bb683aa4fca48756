"""Raw cells: the cross product of a matrix file, without the values that do not concern a cell, without what is excluded.

A value from ``base`` or from an axis may stand for only some of the cells; one that concerns none of them is a typo.
A value written into one ``include`` item must concern that very cell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.matrix.catalog import options_of, refuses
from stepscope.matrix.keys import OPTIMIZERS, OPTION_GROUPS, CellSettings, no_option, validate
from stepscope.matrix.matrix_file import Axis, Exclude, GivenValue, MatrixFile
from stepscope.records.injection import absent, absent_ranks, parse_injection
from stepscope.records.options import OptionsModel
from stepscope.store.yaml_loader import Document, Path, Problem, path_text

MAX_CELLS = 10_000
"""More cells than anybody measures; a cross product beyond it is a slip."""


@record
class RawCell:
    """One cell before defaults: which value the file gives to which key. ``origin`` is ``axes`` or ``include[0]``."""

    origin: Path
    values: Mapping[str, GivenValue]

    @property
    def label(self) -> str:
        return path_text(self.origin)


def count_cells(file: MatrixFile) -> int:
    """Count the cells of the cross products, before anything is dropped, excluded or counted once."""
    own = math.prod(len(axis.points) for axis in file.axes)
    included = sum(math.prod(len(axis.points) for axis in item.axes) for item in file.include)
    return included + (own if file.axes or not file.include else 0)


def raw_cells(file: MatrixFile) -> Iterator[RawCell]:
    """Yield the cross product of the axes over the base in file order (the last axis turns fastest), then the includes.

    Without axes the base alone is one cell, unless there are includes: then it is only what they build on.
    """
    base = {given.key: given for given in file.base}
    if file.axes or not file.include:
        for point in _axes_product(file.axes):
            yield RawCell(origin=("axes",) if file.axes else ("base",), values=base | point)
    for item in file.include:
        own = base | {given.key: given for given in item.values}
        for point in _axes_product(item.axes):
            yield RawCell(origin=item.path, values=own | point)


def _axes_product(axes: tuple[Axis, ...]) -> Iterator[dict[str, GivenValue]]:
    for points in itertools.product(*(axis.points for axis in axes)):
        yield {given.key: given for point in points for given in point}


def option_schema(cell: RawCell, group: str) -> type[OptionsModel] | None:
    """Return the option schema that governs ``group`` in this cell, or None when its owner is missing or unknown."""
    owner = cell.values.get(OPTION_GROUPS[group])
    if owner is None or not isinstance(owner.value, str) or refuses(group, owner.value):
        return None
    return options_of(group, owner.value)


@dataclass(slots=True)
class _Unused:
    """A value that some cell had no use for, until another cell uses it."""

    given: GivenValue
    options: set[str] = field(default_factory=set)
    owners: set[str] = field(default_factory=set)


def drop_inapplicable(cells: Iterable[RawCell], document: Document) -> tuple[tuple[RawCell, ...], tuple[Problem, ...]]:
    """Return the cells without the values that do not concern them, and the values that concern no cell at all."""
    kept: list[RawCell] = []
    unused: dict[Path, _Unused] = {}
    used: set[Path] = set()
    problems: list[Problem] = []
    for cell in cells:
        values: dict[str, GivenValue] = {}
        for key, given in cell.values.items():
            reason = _why_misplaced(cell, given, unused)
            if reason is None:
                values[key] = given
                used.add(given.path)
            elif _written_for_this_cell(cell, given):
                problems.append(document.problem(given.path, reason))
            elif given.key == "inject" and (rest := _faults_without_rank(given)):
                values[key] = replace(given, value=rest)
        kept.append(RawCell(origin=cell.origin, values=values))
    for path, entry in unused.items():
        if path not in used:
            problems.append(document.problem(path, _why_nowhere(entry)))
    return tuple(kept), tuple(problems)


def _why_misplaced(cell: RawCell, given: GivenValue, unused: dict[Path, _Unused]) -> str | None:
    """Say why the value does not concern this cell; None when it does, or when that cannot be told."""
    if given.key == "momentum":
        optimizer = cell.values.get("optimizer")
        name = optimizer.value if optimizer is not None else None
        if name in (None, "sgd") or name not in OPTIMIZERS or not given.value:
            return None
        unused.setdefault(given.path, _Unused(given)).owners.add(str(name))
        return f"{name} has no momentum: remove it (its betas are fixed)"
    if given.key == "inject":
        return _for_no_rank(cell, given, unused)
    group, dot, option = given.key.partition(".")
    if not dot or group not in OPTION_GROUPS:
        return None
    schema = option_schema(cell, group)
    if schema is None or schema.takes(option):
        return None
    owner = str(cell.values[OPTION_GROUPS[group]].value)
    entry = unused.setdefault(given.path, _Unused(given))
    entry.options.update(schema.model_fields)
    entry.owners.add(f"{OPTION_GROUPS[group]} {owner!r}")
    return no_option(f"{OPTION_GROUPS[group]} {owner!r}", option, schema.model_fields)


def _for_no_rank(cell: RawCell, given: GivenValue, unused: dict[Path, _Unused]) -> str | None:
    """Say why slow ranks do not concern a cell: it has none of them."""
    world = _stated_world_size(cell)
    try:
        injection = parse_injection(given.value) if isinstance(given.value, str) else None
    except UsageError:
        injection = None  # said by the cell's own check
    if injection is None or world is None or not injection.slow:
        return None
    if len(absent_ranks(injection, world)) < len(injection.slow):
        return None
    unused.setdefault(given.path, _Unused(given)).owners.add(str(world))
    return absent(injection, world)


def _faults_without_rank(given: GivenValue) -> str:
    """Return the faults that no rank is named for; empty: there are none."""
    return str(replace(parse_injection(given.value), slow=()))


def _stated_world_size(cell: RawCell) -> int | None:
    given = cell.values.get("world_size") or cell.values.get("mesh")
    value = None if given is None else given.value
    if isinstance(value, dict) and all(isinstance(n, int) for n in value.values()):
        return prod(value.values())
    return value if isinstance(value, int) else None


def _written_for_this_cell(cell: RawCell, given: GivenValue) -> bool:
    """True for a value of an include item itself: not from the base, not from an axis."""
    return given.path[0] == "include" and "axes" not in given.path[:3] and cell.origin == given.path[:2]


def _why_nowhere(entry: _Unused) -> str:
    """Say of a value that no cell uses why that is."""
    if entry.given.key == "momentum":
        return f"no cell of the matrix uses sgd ({', '.join(sorted(entry.owners))}): remove momentum"
    if entry.given.key == "inject":
        ranks = " or ".join(sorted(entry.owners, key=int))
        return f"{entry.given.value} slows a rank that no cell has: the cells have {ranks} ranks, counted from 0"
    option = entry.given.key.partition(".")[2]
    return no_option(" or ".join(sorted(entry.owners)), option, entry.options)


def group_values(cell: RawCell, group: str) -> Mapping[str, GivenValue]:
    """Map option names to given values for ``model.*``, ``dataset_options.*``, ``strategy_options.*`` or ``env.*``."""
    prefix = f"{group}."
    return {key.removeprefix(prefix): given for key, given in cell.values.items() if key.startswith(prefix)}


_ABSENT = object()


def without_excluded(
    cells: Iterable[RawCell], excludes: tuple[Exclude, ...]
) -> tuple[tuple[RawCell, ...], tuple[Exclude, ...]]:
    """Return the cells that no item matches, and the items that match nothing."""
    kept = []
    matched: set[int] = set()
    for cell in cells:
        hits = [i for i, item in enumerate(excludes) if matches(cell, item)]
        matched.update(hits)
        if not hits:
            kept.append(cell)
    return tuple(kept), tuple(item for i, item in enumerate(excludes) if i not in matched)


def matches(cell: RawCell, item: Exclude) -> bool:
    """True when every value of the item equals the cell's own, given or default. A list means any of its values."""
    return all(_is_wanted(effective(cell, given.key), given.value) for given in item.values)


def effective(cell: RawCell, key: str) -> Any:
    """Return the cell's value of ``key``: given, else the default of its schema, else a value that equals nothing."""
    given = cell.values.get(key)
    if given is not None and given.value is not None:
        return given.value
    field = CellSettings.model_fields.get(key)
    group, _, option = key.partition(".")
    if field is None and group in OPTION_GROUPS:
        return _option_value(cell, group, option)
    if field is None or field.is_required():
        return _ABSENT
    return field.get_default(call_default_factory=True)


def _option_value(cell: RawCell, group: str, option: str) -> Any:
    """Return the value that the schema gives to an option that the file leaves open; some follow from other options."""
    schema = option_schema(cell, group)
    if schema is None or not schema.takes(option):
        return _ABSENT
    values = {name: given.value for name, given in group_values(cell, group).items()}
    options = validate(schema, values, kind="option")
    return _ABSENT if isinstance(options, tuple) else options.as_dict().get(option, _ABSENT)


def _is_wanted(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list) and any(_is_same(value, one) for one in wanted):
        return True
    return _is_same(value, wanted)


def _is_same(value: Any, wanted: Any) -> bool:
    """Compare values so that true is not 1 and a tuple equals a list."""
    if isinstance(value, tuple):
        value = list(value)
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)

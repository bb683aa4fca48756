"""Values that do not concern a cell drop out of it: a bucket size from a ``naive`` cell, momentum from an Adam cell.

A value from ``base`` or from an axis may stand for only some of the cells; one that concerns none of them is a typo.
A value written into one ``include`` item must concern that very cell.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod

from stepscope.config.cell_settings import OPTIMIZERS, OPTION_GROUPS
from stepscope.config.cross import RawCell
from stepscope.config.injection import absent, absent_ranks, parse_injection
from stepscope.config.matrix_file import GivenValue
from stepscope.config.messages import no_option
from stepscope.config.options import OptionsModel
from stepscope.config.problems import Path, Problem
from stepscope.config.vocabulary import Family, Vocabulary
from stepscope.config.yaml_loader import Document
from stepscope.core.errors import UsageError


def family_of(vocabulary: Vocabulary, group: str) -> Family:
    """The registry whose entries bring the options of ``model``, ``dataset_options`` or ``strategy_options``."""
    return {
        "model": vocabulary.workloads,
        "dataset_options": vocabulary.datasets,
        "strategy_options": vocabulary.strategies,
    }[group]


def option_schema(cell: RawCell, group: str, vocabulary: Vocabulary) -> type[OptionsModel] | None:
    """The option schema that governs ``group`` in this cell; None when its owner is missing or unknown."""
    owner = cell.values.get(OPTION_GROUPS[group])
    family = family_of(vocabulary, group)
    if owner is None or not isinstance(owner.value, str) or family.refuses(owner.value):
        return None
    return family.options(owner.value)


@dataclass(slots=True)
class _Unused:
    """A value that some cell had no use for, until another cell uses it."""

    given: GivenValue
    known: set[str] = field(default_factory=set)
    owners: set[str] = field(default_factory=set)


def drop_inapplicable(
    cells: Iterable[RawCell], vocabulary: Vocabulary, document: Document
) -> tuple[tuple[RawCell, ...], tuple[Problem, ...]]:
    """The cells without the values that do not concern them, and the values that concern no cell at all."""
    kept: list[RawCell] = []
    unused: dict[Path, _Unused] = {}
    used: set[Path] = set()
    problems: list[Problem] = []
    for cell in cells:
        values: dict[str, GivenValue] = {}
        for key, given in cell.values.items():
            reason = _misplaced(cell, given, vocabulary, unused)
            if reason is None:
                values[key] = given
                used.add(given.path)
            elif _written_for_this_cell(cell, given):
                problems.append(document.problem(given.path, reason))
            elif given.key == "inject" and (rest := _of_all_ranks(given)):
                values[key] = replace(given, value=rest)
        kept.append(RawCell(origin=cell.origin, values=values))
    for path, entry in unused.items():
        if path not in used:
            problems.append(document.problem(path, _nowhere(entry)))
    return tuple(kept), tuple(problems)


def _misplaced(cell: RawCell, given: GivenValue, vocabulary: Vocabulary, unused: dict[Path, _Unused]) -> str | None:
    """Why the value does not concern this cell; None when it does, or when that cannot be told."""
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
    schema = option_schema(cell, group, vocabulary)
    if schema is None or schema.takes(option):
        return None
    owner = str(cell.values[OPTION_GROUPS[group]].value)
    entry = unused.setdefault(given.path, _Unused(given))
    entry.known.update(schema.model_fields)
    entry.owners.add(f"{OPTION_GROUPS[group]} {owner!r}")
    return no_option(f"{OPTION_GROUPS[group]} {owner!r}", option, schema.model_fields)


def _for_no_rank(cell: RawCell, given: GivenValue, unused: dict[Path, _Unused]) -> str | None:
    """Why slow ranks do not concern a cell: it has none of them."""
    world = _world_size(cell)
    try:
        found = parse_injection(given.value) if isinstance(given.value, str) else None
    except UsageError:
        found = None  # said by the cell's own check
    if found is None or world is None or not found.slow:
        return None
    if len(absent_ranks(found, world)) < len(found.slow):
        return None
    unused.setdefault(given.path, _Unused(given)).owners.add(str(world))
    return absent(found, world)


def _of_all_ranks(given: GivenValue) -> str:
    """The faults that no rank is named for; empty: there are none."""
    return str(replace(parse_injection(given.value), slow=()))


def _world_size(cell: RawCell) -> int | None:
    given = cell.values.get("world_size") or cell.values.get("mesh")
    value = None if given is None else given.value
    if isinstance(value, dict) and all(isinstance(n, int) for n in value.values()):
        return prod(value.values())
    return value if isinstance(value, int) else None


def _written_for_this_cell(cell: RawCell, given: GivenValue) -> bool:
    """True for a value of an include item itself: not from the base, not from an axis."""
    return given.path[0] == "include" and "axes" not in given.path[:3] and cell.origin == given.path[:2]


def _nowhere(entry: _Unused) -> str:
    if entry.given.key == "momentum":
        return f"no cell of the matrix uses sgd ({', '.join(sorted(entry.owners))}): remove momentum"
    if entry.given.key == "inject":
        ranks = " or ".join(sorted(entry.owners, key=int))
        return f"{entry.given.value} slows a rank that no cell has: the cells have {ranks} ranks, counted from 0"
    option = entry.given.key.partition(".")[2]
    return no_option(" or ".join(sorted(entry.owners)), option, entry.known)


def group_values(cell: RawCell, group: str) -> Mapping[str, GivenValue]:
    """Option name to given value for ``model.*``, ``dataset_options.*``, ``strategy_options.*`` or ``env.*``."""
    prefix = f"{group}."
    return {key.removeprefix(prefix): given for key, given in cell.values.items() if key.startswith(prefix)}

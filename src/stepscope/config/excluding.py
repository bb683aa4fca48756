"""``exclude``: cells that have all of an item's values are taken away."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from stepscope.config.applicable import group_values, option_schema
from stepscope.config.cell_settings import OPTION_GROUPS, CellSettings
from stepscope.config.cross import RawCell
from stepscope.config.matrix_file import Exclude
from stepscope.config.messages import validate
from stepscope.config.vocabulary import Vocabulary

_ABSENT = object()


def without_excluded(
    cells: Iterable[RawCell], excludes: tuple[Exclude, ...], vocabulary: Vocabulary
) -> tuple[tuple[RawCell, ...], tuple[Exclude, ...]]:
    """The cells that no item matches, and the items that match nothing."""
    kept = []
    matched: set[int] = set()
    for cell in cells:
        hits = [i for i, item in enumerate(excludes) if matches(cell, item, vocabulary)]
        matched.update(hits)
        if not hits:
            kept.append(cell)
    return tuple(kept), tuple(item for i, item in enumerate(excludes) if i not in matched)


def matches(cell: RawCell, item: Exclude, vocabulary: Vocabulary) -> bool:
    """True when every value of the item equals the cell's own, given or default. A list means any of its values."""
    return all(_fits(effective(cell, given.key, vocabulary), given.value) for given in item.values)


def effective(cell: RawCell, key: str, vocabulary: Vocabulary) -> Any:
    """The cell's value of ``key``: given, else the default of its schema, else a value that equals nothing."""
    given = cell.values.get(key)
    if given is not None and given.value is not None:
        return given.value
    field = CellSettings.model_fields.get(key)
    group, _, option = key.partition(".")
    if field is None and group in OPTION_GROUPS:
        return _option(cell, group, option, vocabulary)
    if field is None or field.is_required():
        return _ABSENT
    return field.get_default(call_default_factory=True)


def _option(cell: RawCell, group: str, option: str, vocabulary: Vocabulary) -> Any:
    """The value that the schema gives to an option that the file leaves open; some follow from other options."""
    schema = option_schema(cell, group, vocabulary)
    if schema is None or not schema.takes(option):
        return _ABSENT
    values = {name: given.value for name, given in group_values(cell, group).items()}
    options = validate(schema, values, kind="option")
    return _ABSENT if isinstance(options, tuple) else options.as_dict().get(option, _ABSENT)


def _fits(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, list) and any(_same(value, one) for one in wanted):
        return True
    return _same(value, wanted)


def _same(value: Any, wanted: Any) -> bool:
    """Equality that tells true from 1 and takes a tuple for a list."""
    if isinstance(value, tuple):
        value = list(value)
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)

"""``--set PATH=VALUE``: changes to a matrix file from the command line, before it is checked."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from stepscope.core.errors import UsageError
from stepscope.core.words import unknown
from stepscope.matrix.keys import CELL_KEYS, GROUP_KEYS, CommSection, LaunchSettings, MeasureOptions, rival_of
from stepscope.matrix.matrix_file import SECTIONS, is_group_key, unknown_cell_key
from stepscope.records.options import OptionsModel
from stepscope.store.yaml_loader import Document, Mark, Path, parse_value, path_text

_CELL_LISTS = ("include", "exclude")
_FLAT: dict[str, type[OptionsModel]] = {"launch": LaunchSettings, "measure": MeasureOptions, "comm": CommSection}
_EXAMPLE = "write for example --set base.lr=1e-3 or --set axes.world_size=[1,2]"


@dataclass(frozen=True, slots=True)
class Shortcut:
    """An option of the command line that stands for a change: ``--steps N`` for ``base.steps=N``."""

    option: str
    value: str
    path: str


Override = str | Shortcut
"""``a.b=value`` as ``--set`` takes it, or another option that comes to the same."""


def apply_overrides(document: Document, overrides: Sequence[Override]) -> Document:
    """Return ``document`` with each ``a.b=value`` set, in order; later ones win. The value is YAML, read by the same rules.

    Setting one of two rival keys (global_batch and micro_batch, steps and epochs) removes the other one beside it.
    Setting a base value that an axis sweeps is refused: it would change nothing. An unknown path: UsageError.
    """
    if not isinstance(document.value, dict):
        return document  # no matrix: nothing can be changed in it, and its check says so
    for override in overrides:
        document = _apply_override(document, override)
    return document


def _apply_override(document: Document, override: Override) -> Document:
    """Return the document with one value set. Raises UsageError for a path that it has not."""
    if isinstance(override, Shortcut):
        target, equals, value_text = override.path, "=", override.value
        mark = Mark(f"{override.option} {override.value}", names_the_key=True)
    else:
        target, equals, value_text = override.partition("=")
        mark = Mark(f"--set {override}")
    source = mark.source
    if not equals or not target:
        raise UsageError(f"{source}: expected PATH=VALUE", fix=_EXAMPLE)
    if not value_text.strip():
        raise UsageError(f"{source}: the value is missing", fix=f"write {target}=null to remove a value")
    value = parse_value(value_text, source=source)
    top = copy.deepcopy(document.value)
    container, path = _container_and_path(top, target, source)
    key = path[-1]
    # null takes a value away: nothing has to make room for that
    room = value is not None and isinstance(container, dict)
    removed = _make_room(top, container, path, source) if room else ()
    container[key] = value
    return _with_value(document, top, path, removed, mark)


def _with_value(document: Document, top: dict[str, Any], path: Path, removed: Sequence[Path], mark: Mark) -> Document:
    """Return the document with the new value. Marks follow the values: what was replaced or removed is forgotten, with the
    complaints about it."""
    gone = (path, *removed)
    marks = {p: m for p, m in document.marks.items() if not any(p[: len(g)] == g for g in gone)}
    texts = tuple(path_text(g) for g in gone)
    problems = tuple(p for p in document.problems if not any(_is_inside(p.path, text) for text in texts))
    return replace(document, value=top, marks={**marks, path: mark}, problems=problems)


def _is_inside(path: str, container: str) -> bool:
    return path == container or path.startswith((f"{container}.", f"{container}["))


def _container_and_path(top: dict[str, Any], target: str, source: str) -> tuple[Any, Path]:
    """Return the container to write into and the full path of the value; sections are created on the way."""
    section, dot, rest = target.partition(".")
    if section not in SECTIONS:
        raise UsageError(f"{source}: {_unknown_target(target)}")
    if not dot:
        return top, (section,)
    if section in ("base", "axes"):
        return _cell_key(_child_mapping(top, section, source), (section,), rest, source)
    if section in _FLAT:
        return _setting_place(_child_mapping(top, section, source), section, rest, source)
    if section in _CELL_LISTS:
        return _list_item(top, section, rest, source)
    raise UsageError(f"{source}: {section} holds one value, and has no keys below it")


def _unknown_target(target: str) -> str:
    """Say that a path is unknown, and what may be meant."""
    if target in CELL_KEYS or target.partition(".")[0] in GROUP_KEYS:
        return f"unknown path {target!r}; did you mean 'base.{target}' or 'axes.{target}'?"
    for section, schema in _FLAT.items():
        if target in schema.model_fields:
            return f"unknown path {target!r}; did you mean '{section}.{target}'?"
    return unknown("section", target.partition(".")[0], SECTIONS)


def _child_mapping(parent: dict[str, Any], key: str, source: str) -> dict[str, Any]:
    """Return the mapping under a key, made where there is none. Raises UsageError where it is something else."""
    if parent.get(key) is None:
        parent[key] = {}
    child = parent[key]
    if not isinstance(child, dict):
        raise UsageError(f"{source}: {key} is not a mapping in this file")
    return child


def _cell_key(container: dict[str, Any], path: Path, key: str, source: str) -> tuple[Any, Path]:
    """Return the container and path of a cell's key. Raises UsageError for an unknown one."""
    if key not in CELL_KEYS and key not in GROUP_KEYS and not is_group_key(key):
        raise UsageError(f"{source}: {unknown_cell_key(key)}")
    group, _, name = key.partition(".")
    if name and isinstance(container.get(group), dict):  # written nested in the file: model: {size: ...}
        return container[group], (*path, group, name)
    return container, (*path, key)


def _setting_place(container: dict[str, Any], section: str, key: str, source: str) -> tuple[Any, Path]:
    """Return the container and path of a setting. Raises UsageError for an unknown one."""
    if section == "launch" and key.startswith("env.") and key != "env.":
        name = key.removeprefix("env.")
        return _child_mapping(container, "env", source), (section, "env", name)
    fields = _FLAT[section].model_fields
    if key not in fields:
        raise UsageError(f"{source}: {unknown(f'key of {section}', key, fields)}")
    return container, (section, key)


def _list_item(top: dict[str, Any], section: str, rest: str, source: str) -> tuple[Any, Path]:
    """Return the container and path in an item of include or exclude. Raises UsageError where it is not there."""
    number, dot, key = rest.partition(".")
    items = top.get(section)
    if not isinstance(items, list) or not items:
        raise UsageError(f"{source}: this matrix has no {section}", fix=f"set the whole list: {section}=[{{...}}]")
    if not number.isdecimal() or int(number) >= len(items):
        raise UsageError(f"{source}: {section} has items 0 to {len(items) - 1}, found {number!r}")
    index = int(number)
    if not dot:
        return items, (section, index)
    item = items[index]
    if not isinstance(item, dict):
        raise UsageError(f"{source}: {section}.{index} is not a mapping in this file")
    if section == "include" and key.startswith("axes."):
        return _cell_key(
            _child_mapping(item, "axes", source), (section, index, "axes"), key.removeprefix("axes."), source
        )
    return _cell_key(item, (section, index), key, source)


def _make_room(top: dict[str, Any], container: dict[str, Any], path: Path, source: str) -> tuple[Path, ...]:
    """Remove what the new value stands against: its rival, and other spellings of the same group."""
    key = str(path[-1])
    if path[0] == "base":
        _refuse_shadowed(top, ".".join(str(part) for part in path[1:]), source)
    removed: list[Path] = []
    rival = rival_of(key) if path[0] in ("base", "axes", *_CELL_LISTS) else None
    if rival is not None and rival in container:
        del container[rival]
        removed.append((*path[:-1], rival))
    if rival is not None and path[0] == "axes" and rival in (base := _child_mapping(top, "base", source)):
        del base[rival]
        removed.append(("base", rival))
    if key in GROUP_KEYS and path[0] in ("base", "include"):
        for spelled in [k for k in container if k.startswith(f"{key}.")]:
            del container[spelled]
            removed.append((*path[:-1], spelled))
    return tuple(removed)


def _refuse_shadowed(top: dict[str, Any], key: str, source: str) -> None:
    """Raise UsageError where an axis would overwrite the value."""
    axes = top.get("axes")
    if not isinstance(axes, dict):
        return
    for name in (key, rival_of(key)):
        if name is not None and name in axes:
            raise UsageError(
                f"{source}: has no effect, because axes.{name} sweeps it",
                fix=f"set the axis: --set axes.{name}=[...]; one value makes it constant",
            )

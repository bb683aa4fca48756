"""The matrices that come with stepscope: ``stepscope bench --preset NAME``."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable

from stepscope.config.yaml_loader import Document, parse_yaml
from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown

PACKAGE = "stepscope.presets"
SUFFIX = ".yaml"


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset's name and the question it answers."""

    name: str
    description: str


def preset_names() -> tuple[str, ...]:
    """All presets, sorted."""
    return tuple(sorted(name.removesuffix(SUFFIX) for name in _files()))


def list_presets() -> tuple[Preset, ...]:
    """Every preset with its description, sorted by name."""
    return tuple(Preset(name, _description(preset_document(name))) for name in preset_names())


def preset_text(name: str) -> str:
    """The preset's file as it is, for a user who wants to start from it. Unknown name: UsageError."""
    file = _files().get(f"{name}{SUFFIX}")
    if file is None:
        raise UsageError(unknown("preset", name, preset_names()))
    return file.read_text(encoding="utf-8")


def preset_document(name: str) -> Document:
    """The preset as values with positions."""
    return parse_yaml(preset_text(name), source=f"preset {name}")


def _description(document: Document) -> str:
    value = document.value.get("description") if isinstance(document.value, dict) else None
    return value.strip() if isinstance(value, str) else ""


def _files() -> dict[str, Traversable]:
    return {item.name: item for item in resources.files(PACKAGE).iterdir() if item.name.endswith(SUFFIX)}

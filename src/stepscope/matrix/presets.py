"""The matrices that come with stepscope: ``stepscope bench --preset NAME``."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources

from stepscope.config.yaml_loader import Document, parse_yaml
from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.results.experiments import experiment_names, experiment_of

PACKAGE = "stepscope.presets"
SUFFIX = ".yaml"


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset's name and the question it answers."""

    name: str
    description: str


def preset_names() -> tuple[str, ...]:
    """All presets, sorted."""
    files = (item.name for item in resources.files(PACKAGE).iterdir() if item.name.endswith(SUFFIX))
    return tuple(sorted({*(name.removesuffix(SUFFIX) for name in files), *experiment_names()}))


def list_presets() -> tuple[Preset, ...]:
    """Every preset with its description, sorted by name."""
    return tuple(Preset(name, _description(preset_document(name))) for name in preset_names())


def preset_text(name: str) -> str:
    """The preset's file as it is, for a user who wants to start from it. Unknown name: UsageError."""
    experiment = experiment_of(name)
    if experiment is not None and experiment.matrix is not None:
        return experiment.matrix
    file = resources.files(PACKAGE).joinpath(f"{name}{SUFFIX}")
    if name not in preset_names():
        raise UsageError(unknown("preset", name, preset_names()))
    return file.read_text(encoding="utf-8")


def preset_document(name: str) -> Document:
    """The preset as values with positions."""
    return parse_yaml(preset_text(name), source=f"preset {name}")


def _description(document: Document) -> str:
    value = document.value.get("description") if isinstance(document.value, dict) else None
    return value.strip() if isinstance(value, str) else ""

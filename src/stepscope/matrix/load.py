"""A matrix read and written: a file or a preset with the changes from the command line, checked; the resolved file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from stepscope.core.errors import UsageError
from stepscope.core.words import did_you_mean, unknown
from stepscope.matrix.catalog import FAMILIES
from stepscope.matrix.checked import Matrix, build_matrix
from stepscope.matrix.keys import CellSettings, MeasureOptions, rival_of
from stepscope.matrix.matrix_file import SECTIONS
from stepscope.matrix.overrides import Override, apply_overrides
from stepscope.records.options import OptionsModel
from stepscope.results.experiments import experiment_names, experiment_of
from stepscope.store.yaml_loader import Document, parse_yaml, read_yaml

PACKAGE = "stepscope.presets"
SUFFIX = ".yaml"


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    files = (item.name for item in resources.files(PACKAGE).iterdir() if item.name.endswith(SUFFIX))
    return tuple(sorted({*(name.removesuffix(SUFFIX) for name in files), *experiment_names()}))


def list_presets() -> dict[str, str]:
    """Return every preset, sorted by name, with the question it answers."""
    return {name: _matrix_description(preset_document(name)) for name in preset_names()}


def preset_text(name: str) -> str:
    """Return the preset's file as it is, for a user who wants to start from it. Unknown name: UsageError."""
    experiment = experiment_of(name)
    if experiment is not None and experiment.matrix is not None:
        return experiment.matrix
    file = resources.files(PACKAGE).joinpath(f"{name}{SUFFIX}")
    if name not in preset_names():
        raise UsageError(unknown("preset", name, preset_names()))
    return file.read_text(encoding="utf-8")


def preset_document(name: str) -> Document:
    """Return the preset as values with positions."""
    return parse_yaml(preset_text(name), source=f"preset {name}")


def _matrix_description(document: Document) -> str:
    value = document.value.get("description") if isinstance(document.value, dict) else None
    return value.strip() if isinstance(value, str) else ""


def load_matrix(source: Path | str | Document, *, overrides: Sequence[Override] = ()) -> Matrix:
    """Return the matrix in a file (``Path``), of a preset (``str``) or already read, with ``--set`` changes applied,
    checked.

    All mistakes are raised together as one UsageError with file, line, column and key path of each.
    """
    document = source if isinstance(source, Document) else read_document(source)
    name = source.stem if isinstance(source, Path) else document.source.removeprefix("preset ")
    return matrix_of(document, name=name, overrides=overrides)


def matrix_of(document: Document, *, name: str, overrides: Sequence[Override] = ()) -> Matrix:
    """Return the matrix in a document that has been read already."""
    return build_matrix(apply_overrides(document, overrides), name=name)


def read_document(source: Path | str) -> Document:
    """Return the file or the preset as values with positions. A file that is not there but is named like a preset says
    so."""
    if isinstance(source, str):
        return preset_document(source)
    if not source.exists() and (near := did_you_mean(source.stem, preset_names())) is not None:
        raise UsageError(f"there is no file {source}", fix=f"for the preset write --preset {near}")
    return read_yaml(source)


def digest_lookup(data_dir: Path | None) -> Callable[[str, OptionsModel], str]:
    """Return the ``digest_of`` of :func:`stepscope.matrix.expand.expand`: it finds a dataset's files and names their
    content.

    Each dataset with the same options is looked at once. Raises DataError when files are missing or damaged.
    """
    digests: dict[str, str] = {}

    def digest_of(key: str, options: OptionsModel) -> str:
        identity = f"{key} {options.model_dump_json()}"
        if identity not in digests:
            dataset = FAMILIES["dataset_options"].load(key)
            digests[identity] = dataset.digest(options, dataset.locate(options, data_dir))
        return digests[identity]

    return digest_of


def resolved_matrix(matrix: Matrix) -> dict[str, Any]:
    """Return the matrix with its overrides applied and every default written out. Reading it gives the same cells.

    Defaults of workload, dataset and strategy options are not in it: they depend on the cell, and each cell's own spec
    has them.
    """
    document = copy.deepcopy(dict(matrix.document))
    document["name"] = matrix.name
    own = any(draft.settings.optimizer == "own" for draft in matrix.cells)
    document["base"] = _base_with_defaults(document, open_keys={"optimizer"} if own else set())
    document["equal_buckets"] = matrix.equal_buckets
    document["comm"] = None if matrix.comm is None else matrix.comm.as_dict()
    document["launch"] = matrix.launch.as_dict()
    document["measure"] = MeasureOptions().as_dict() | _given_values(document.get("measure"))
    return {key: document[key] for key in SECTIONS if document.get(key) is not None}


def _given_values(section: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (section or {}).items() if value is not None}


def _base_with_defaults(document: Mapping[str, Any], *, open_keys: set[str]) -> dict[str, Any]:
    """Return the base with defaults; ``open_keys`` have one that depends on the workload."""
    given: dict[str, Any] = _given_values(document.get("base"))
    swept = open_keys | set(document.get("axes") or {})
    defaults = {
        key: field.default
        for key, field in CellSettings.model_fields.items()
        if not field.is_required() and field.default is not None and rival_of(key) is None
    }
    return given | {key: value for key, value in defaults.items() if key not in given and key not in swept}


def matrix_yaml(matrix: Matrix) -> str:
    """Return the resolved matrix as YAML text that the strict loader reads back to the same cells."""
    return yaml.dump(
        resolved_matrix(matrix), Dumper=_Dumper, sort_keys=False, default_flow_style=None, allow_unicode=True, width=110
    )


class _Dumper(yaml.SafeDumper):
    """Writes floats so that YAML readers of every version take them for numbers."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - signature of PyYAML
        return True


def _yaml_float_node(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    if e and "." not in mantissa:
        text = f"{mantissa}.0e{exponent}"
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _yaml_float_node)

"""The resolved matrix: what was really asked for, as the user could have written it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import yaml

from stepscope.config.cell_settings import CellSettings, rival_of
from stepscope.config.matrix import Matrix
from stepscope.config.sections import MeasureOptions

_ORDER = (
    "version", "name", "description", "base", "axes", "include", "exclude", "equal_buckets", "comm", "launch",
    "measure",
)  # fmt: skip


def resolved_matrix(matrix: Matrix) -> dict[str, Any]:
    """The matrix with its overrides applied and every default written out. Reading it gives the same cells.

    Defaults of workload, dataset and strategy options are not in it: they depend on the cell, and each cell's own spec
    has them.
    """
    document = copy.deepcopy(dict(matrix.document))
    document["name"] = matrix.name
    own = any(draft.settings.optimizer == "own" for draft in matrix.cells)
    document["base"] = _base(document, open_keys={"optimizer"} if own else set())
    document["equal_buckets"] = matrix.equal_buckets
    document["comm"] = None if matrix.comm is None else matrix.comm.as_dict()
    document["launch"] = matrix.launch.as_dict()
    document["measure"] = MeasureOptions().as_dict() | _given(document.get("measure"))
    return {key: document[key] for key in _ORDER if document.get(key) is not None}


def _given(section: Mapping[str, Any] | None) -> dict[str, Any]:
    return {key: value for key, value in (section or {}).items() if value is not None}


def _base(document: Mapping[str, Any], *, open_keys: set[str]) -> dict[str, Any]:
    """The base with defaults; ``open_keys`` have one that depends on the workload."""
    given: dict[str, Any] = _given(document.get("base"))
    swept = open_keys | set(document.get("axes") or {})
    defaults = {
        key: field.default
        for key, field in CellSettings.model_fields.items()
        if not field.is_required() and field.default is not None and rival_of(key) is None
    }
    return given | {key: value for key, value in defaults.items() if key not in given and key not in swept}


def matrix_yaml(matrix: Matrix) -> str:
    """The resolved matrix as YAML text that the strict loader reads back to the same cells."""
    return yaml.dump(
        resolved_matrix(matrix),
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=None,
        allow_unicode=True,
        width=110,
    )


class _Dumper(yaml.SafeDumper):
    """Writes floats so that YAML readers of every version take them for numbers."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - signature of PyYAML
        return True


def _float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    if e and "." not in mantissa:
        text = f"{mantissa}.0e{exponent}"
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _float)

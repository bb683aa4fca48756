"""What ``stepscope schema`` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stepscope.cli.console import out, print_json
from stepscope.core.errors import UsageError
from stepscope.core.suggest import unknown
from stepscope.records.codec import encode_document
from stepscope.records.comm import CommRow
from stepscope.records.comparison import ComparedFigure, Difference
from stepscope.records.finding import Finding, Quiet, Skipped
from stepscope.records.run import RunRecord
from stepscope.records.schemas import DIALECT, document_schema, object_type, record_schemas
from stepscope.records.training import ScalingRow
from stepscope.results.run_figures import BENCH

if TYPE_CHECKING:
    from stepscope.cli.commands.schema import Schema

_DIAGNOSIS: Mapping[str, Any] = {
    "sources": list[dict[str, str | None]],
    "metrics": dict[str, float | None],
    "findings": tuple[Finding, ...],
    "skipped": tuple[Skipped, ...],
    "quiet": tuple[Quiet, ...],
    "scaling": tuple[ScalingRow, ...],
    "notes": list[str],
}

_ROW = object_type("BenchRow", {name: figure.kind for name, figure in BENCH.items()})

DOCUMENTS: Mapping[str, Mapping[str, Any]] = {
    "bench/1": {"run": RunRecord | None, "cells": list[_ROW]},  # type: ignore[valid-type]
    "comm/1": {"run": RunRecord | None, "rows": tuple[CommRow, ...]},
    "diagnose/1": _DIAGNOSIS,
    "rules/1": {"rules": list[dict[str, Any]]},
    "compare/1": {
        "sides": list[str],
        "differences": tuple[Difference, ...],
        "same": tuple[Difference, ...],
        "unknown": tuple[Difference, ...],
        "figures": tuple[ComparedFigure, ...],
        "unmatched": list[str],
        "notes": list[str],
    },
    "report/1": {**_DIAGNOSIS, "files": list[str]},
}
"""What commands print with --json: keys and what they hold."""


def run(options: Schema) -> int:
    """All schemas, one of them, or their names. Raises UsageError for an unknown one."""
    schemas = {
        **record_schemas(),
        **{key: document_schema(key, fields) for key, fields in DOCUMENTS.items()},
    }
    name = options.name
    if options.names:
        for key in sorted(schemas):
            out().print(key, markup=False)
        return 0
    if name is None:
        print_json(encode_document({"$schema": DIALECT, "schemas": schemas}))
        return 0
    found = [key for key in schemas if name in (key, key.partition("/")[0], f"stepscope.{key}")]
    if not found:
        raise UsageError(unknown("schema", name, sorted(schemas)), fix="`stepscope schema --list` names all of them")
    print_json(encode_document(schemas[found[0]]))
    return 0

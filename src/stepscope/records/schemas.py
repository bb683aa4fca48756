"""JSON Schemas of everything that is written: one for every record with a file, and for the lines of sample files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from stepscope.records.codec import KINDS
from stepscope.records.comm import CommSample
from stepscope.records.samples import StepSample

LINES: Mapping[str, tuple[type, str]] = {
    "rank_samples_line": (StepSample, "cells/ID/samples-RANK.jsonl of bench, from its second line"),
    "comm_samples_line": (CommSample, "cells/ID/samples-RANK.jsonl of comm, from its second line"),
}
"""Name -> (record of one line, where it lies). Such lines carry no header of their own."""

HEADER: Mapping[str, Any] = {
    "schema": {"type": "string", "description": "stepscope.KIND/VERSION"},
    "tool_version": {"type": "string"},
    "created": {"type": "string", "format": "date-time", "description": "UTC"},
}
"""What every file begins with."""

COMMAND: Mapping[str, Any] = {
    "command": {"type": "array", "items": {"type": "string"}, "description": "the command that printed it"}
}
"""What a command's document states besides the header."""

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def record_schemas() -> dict[str, dict[str, Any]]:
    """Return name (``run/1``, ``rank_samples_line``) -> JSON Schema of that file's or line's object."""
    files = {f"{name}/{version}": _of_file(kind, name, version) for kind, (name, version) in KINDS.items()}
    lines = {
        name: {"$schema": DIALECT, **_schema_body(kind), "title": f"a line of {where}"}
        for name, (kind, where) in LINES.items()
    }
    return {**files, **lines}


def object_type(name: str, fields: Mapping[str, Any]) -> type:
    """Make a type for schemas: an object with these keys; fields: key -> Python type of its value."""
    return msgspec.defstruct(name, list(fields.items()), kw_only=True)


def document_schema(name: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Make the schema of a command's JSON document ``stepscope.NAME``; fields: key -> Python type of its value."""
    made = object_type(name.replace("/", "_").replace(".", "_"), fields)
    (_,), components = msgspec.json.schema_components([made], ref_template="#/$defs/{name}")
    body = components.pop(made.__name__)
    return {
        "$schema": DIALECT,
        "title": f"stepscope.{name}",
        "type": "object",
        "properties": {**_header_schema(f"stepscope.{name}"), **COMMAND, **body["properties"]},
        "required": ["schema", *body["required"]],
        **({"$defs": components} if components else {}),
    }


def _of_file(kind: type, name: str, version: int) -> dict[str, Any]:
    full = f"stepscope.{name}/{version}"
    body = _schema_body(kind)
    body["properties"] = {**_header_schema(full), **body["properties"]}
    body["required"] = ["schema", *body.get("required", ())]
    return {"$schema": DIALECT, **body, "title": full}


def _schema_body(kind: type) -> dict[str, Any]:
    """Return the object's own schema, with those of what it holds under ``$defs``."""
    _, components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    body: dict[str, Any] = components.pop(kind.__name__)
    return {**body, **({"$defs": components} if components else {})}


def _header_schema(schema: str) -> dict[str, Any]:
    return {**HEADER, "schema": {"const": schema}}

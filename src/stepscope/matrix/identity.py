"""The name of a cell: what it measures and a hash of everything that decides the result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any, TypeVar

from stepscope.records.cell import Cell, CellSpec
from stepscope.records.codec import to_builtins
from stepscope.records.comm import CommSpec

C = TypeVar("C", CellSpec, CommSpec)

HASH_DIGITS = 10


def identity(spec: Cell) -> dict[str, Any]:
    """The fields that make two cells the same cell: all of the spec but its id. Independent of the order of keys."""
    document: dict[str, Any] = to_builtins(spec)
    document.pop("cell_id")
    for added in ("facts", "mesh", "inject"):  # ids from before there were such fields stay
        if not document.get(added, True):
            document.pop(added)
    if document.get("activation_checkpointing") == "none":
        document.pop("activation_checkpointing")
    if document.get("model", {}).get("tied") is False:
        document["model"] = {name: value for name, value in document["model"].items() if name != "tied"}
    return document


def cell_id(spec: Cell) -> str:
    """``WORKLOAD-STRATEGY-wWORLD-HASH``, ``OP-DTYPE-wWORLD-HASH`` for a sweep.

    The hash covers the identity as canonical JSON (SHA-256, 40 bits).
    """
    canonical = json.dumps(identity(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:HASH_DIGITS]
    workload = "" if isinstance(spec, CommSpec) else spec.workload.removeprefix("python:").replace(":", ".")
    what = f"{spec.op}-{spec.dtype}" if isinstance(spec, CommSpec) else f"{workload}-{spec.strategy}"
    return f"{what}-w{spec.world_size}-{digest}"


def named(spec: C) -> C:
    """``spec`` with its id filled in."""
    return dataclasses.replace(spec, cell_id=cell_id(spec))

"""The name of a cell: what it measures and a hash of everything that decides the result."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from stepscope.records.cell import CellSpec
from stepscope.records.codec import to_builtins

HASH_DIGITS = 10


def identity(spec: CellSpec) -> dict[str, Any]:
    """The fields that make two cells the same cell: all of the spec but its id. Independent of the order of keys."""
    document: dict[str, Any] = to_builtins(spec)
    document.pop("cell_id")
    return document


def cell_id(spec: CellSpec) -> str:
    """``WORKLOAD-STRATEGY-wWORLD-HASH``; the hash covers the identity as canonical JSON (SHA-256, 40 bits)."""
    canonical = json.dumps(identity(spec), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:HASH_DIGITS]
    return f"{spec.workload}-{spec.strategy}-w{spec.world_size}-{digest}"


def named(spec: CellSpec) -> CellSpec:
    """``spec`` with its id filled in."""
    return dataclasses.replace(spec, cell_id=cell_id(spec))

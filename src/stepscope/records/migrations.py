"""Pure upgrades of old files, one step per version. tests/data/schema keeps one frozen example of each version.

``MIGRATIONS["status"][1]`` would turn a version-1 document into version 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Document = dict[str, Any]

MIGRATIONS: dict[str, dict[int, Callable[[Document], Document]]] = {}


def migrate(document: Document, kind: str, found: int, wanted: int) -> Document:
    """``document`` of version ``found`` as version ``wanted``, the header keys taken off."""
    steps = MIGRATIONS.get(kind, {})
    for version in range(found, wanted):
        document = steps[version](document)
    return {k: v for k, v in document.items() if k not in ("schema", "tool_version", "created")}

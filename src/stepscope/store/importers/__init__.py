"""Readers of what other tools left behind, into this project's records: one file each, ``IMPORTER``.

``detect`` finds the importer that a path is for, from its name and first bytes; ``read_foreign`` reads it.
"""

from __future__ import annotations

from stepscope.core.registry import Registry
from stepscope.store.importer import Importer

REGISTRY: Registry[Importer] = Registry("stepscope.store.importers", "IMPORTER", "importer")

"""Readers of what other tools left behind, into this project's records: one file each, ``IMPORTER``.

``detect`` finds the importer that a path is for, from its name and first bytes; ``read_foreign`` reads it.
"""

from __future__ import annotations

from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.core.registry import Registry
from stepscope.core.words import nearest_path
from stepscope.records.imported import Imported, Stated
from stepscope.store.importer import Candidate, Importer

REGISTRY: Registry[Importer] = Registry("stepscope.store.importers", "IMPORTER", "importer")


def detect(path: Path, stated: Stated | None = None) -> tuple[str, Importer] | None:
    """(key, importer) that knows this path; None: no importer does. Specific formats are asked before general ones."""
    candidate = Candidate(path, stated or Stated())
    known = sorted(((key, REGISTRY.load(key)) for key in REGISTRY.names()), key=lambda each: each[1].rank)
    return next(((key, each) for key, each in known if each.recognises(candidate)), None)


def read_foreign(path: Path, stated: Stated | None = None) -> Imported:
    """What a path of another tool holds. Raises DataError where nothing is there, or no importer knows it."""
    if not path.exists():
        raise DataError(f"{path} does not exist", fix=nearest_path(path))
    found = detect(path, stated)
    if found is None:
        known = ", ".join(REGISTRY.load(key).title for key in REGISTRY.names())
        raise DataError(
            f"{path}: not a file or folder that stepscope can read",
            why="it is not a run folder or a trace, and no importer recognises it" + _empty(path),
            fix=f"stepscope reads run folders, traces, and: {known}",
        )
    return found[1].read(path, stated or Stated())


def _empty(path: Path) -> str:
    if path.is_file() and path.stat().st_size == 0:
        return "; the file is empty"
    return ""

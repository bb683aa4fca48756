"""Readers of what other tools left behind, into this project's records: one file each, ``IMPORTER``.

``detect`` finds the importer that a path is for, from its name and first bytes; ``read_foreign`` reads it.
"""

from __future__ import annotations

from functools import cache
from itertools import islice
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.core.registry import Registry
from stepscope.core.words import nearest_path
from stepscope.records.imported import Imported, Stated
from stepscope.store.importer import LOOKED_AT, Candidate, Form, Importer, holds_traces, is_about

REGISTRY: Registry[Importer] = Registry("stepscope.store.importers", "IMPORTER", "importer")


@cache
def declared(key: str) -> Form:
    """Return what an importer declares, read from its file without importing it; of third parties, the importer itself."""
    if key not in REGISTRY.shipped:
        return REGISTRY.load(key)
    return Form(**REGISTRY.written(key, Form.__dataclass_fields__))


@cache
def _forms_by_rank(names: tuple[str, ...]) -> tuple[tuple[str, Form], ...]:
    return tuple(sorted(((key, declared(key)) for key in names), key=lambda entry: entry[1].rank))


def detect(path: Path, stated: Stated | None = None) -> tuple[str, Importer] | None:
    """Find the (key, importer) that knows this path, or None. Specific formats are asked before general ones.

    A folder is for the importer of its most specific file; not where traces or run folders lie in it.
    """
    candidate = Candidate(path, stated or Stated())
    if candidate.is_folder:
        if holds_traces(candidate):
            return None
        likely = islice((file for file in candidate.files if not is_about(file)), LOOKED_AT)
        matches = [importer_of_file for file in likely if (importer_of_file := detect(file, stated)) is not None]
        return min(matches, key=lambda match: match[1].rank, default=None)
    for key, form in _forms_by_rank(REGISTRY.names()):
        if form.may_be(candidate) and (importer := REGISTRY.load(key)).recognises(candidate):
            return key, importer
    return None


def read_foreign(path: Path, stated: Stated | None = None) -> Imported:
    """Read a path of another tool. Raises DataError where nothing is there, or no importer knows it."""
    if not path.exists():
        raise DataError(f"{path} does not exist", fix=nearest_path(path))
    match = detect(path, stated)
    if match is None:
        titles = ", ".join(declared(key).title for key in REGISTRY.names())
        raise DataError(
            f"{path}: not a file or folder that stepscope can read",
            why="it is not a run folder or a trace, and no importer recognises it" + _empty_suffix(path),
            fix=f"stepscope reads run folders, traces, and: {titles}",
        )
    return match[1].read(path, stated or Stated())


def _empty_suffix(path: Path) -> str:
    if path.is_file() and path.stat().st_size == 0:
        return "; the file is empty"
    return ""

"""Where the real result sets lie, and what every importer's tests do with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.records import codec
from stepscope.records.imported import Imported, Stated
from stepscope.records.training import TrainingRun
from stepscope.store.importers import detect, read_foreign

RESULTS = Path(__file__).parents[4].parent / "shared" / "data" / "results"

real = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not RESULTS.is_dir(), reason=f"no real results at {RESULTS}"),
]


def read(path: Path, *, key: str, stated: Stated | None = None) -> Imported:
    """What is imported from ``path``: by the importer ``key``, and a record that can be written."""
    assert detect(path)[0] == key
    imported = read_foreign(path, stated)
    assert imported.format == key
    codec.encode_document({"imported": codec.plain(imported)})  # refuses what is not finite
    ids = [run.run_id for run in imported.runs]
    assert len(set(ids)) == len(ids)
    return imported


def by_id(imported: Imported) -> dict[str, TrainingRun]:
    return {run.run_id: run for run in imported.runs}


def document(path: Path) -> Any:
    return json.loads(path.read_text())


def write(path: Path, value: Any) -> Path:
    """``value`` as JSON, or a text as it is."""
    path.write_text(value if isinstance(value, str) else json.dumps(value, indent=1))
    return path

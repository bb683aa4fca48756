"""JSON Schemas: one for every record with a file, true of the frozen example files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.errors import DataError
from stepscope.records.codec import KINDS, decode
from stepscope.records.schemas import LINES, document_schema, record_schemas
from stepscope.records.training import TrainingRun

EXAMPLES = Path(__file__).parents[2] / "data" / "schema"


CURRENT = [EXAMPLES / f"{name}-{version}.json" for name, version in KINDS.values()]


def test_every_record_with_a_file_and_every_line_has_a_schema() -> None:
    names = {f"{name}/{version}" for name, version in KINDS.values()}
    assert set(record_schemas()) == names | set(LINES)


@pytest.mark.parametrize("path", CURRENT, ids=lambda p: p.stem)
def test_the_frozen_example_of_a_file_fits_its_schema(path: Path) -> None:
    document: dict[str, Any] = (
        json.loads(path.read_text().splitlines()[0]) if path.suffix == ".jsonl" else json.loads(path.read_text())
    )
    name, _, version = path.stem.rpartition("-")
    schema = record_schemas()[f"{name}/{version}"]
    assert schema["properties"]["schema"] == {"const": document["schema"]}
    assert set(schema["required"]) <= set(document)
    assert set(document) <= set(schema["properties"])


def test_a_document_has_the_common_header_and_its_own_keys() -> None:
    schema = document_schema("toy/1", {"count": int, "names": list[str]})
    assert schema["required"] == ["schema", "count", "names"]
    assert schema["properties"]["schema"] == {"const": "stepscope.toy/1"}
    assert schema["properties"]["count"] == {"type": "integer"}


def test_whole_numbers_of_other_writers_are_read_as_integers() -> None:
    example = json.loads((EXAMPLES / "training_run-2.json").read_text())
    told = decode(json.dumps({**example, "world_size": 4.0}).encode(), TrainingRun, source="x.json")
    assert (told.world_size, type(told.world_size)) == (4, int)
    with pytest.raises(DataError, match="not a valid TrainingRun"):
        decode(json.dumps({**example, "world_size": 4.5}).encode(), TrainingRun, source="x.json")

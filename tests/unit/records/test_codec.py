"""Records survive the disk; damage, newer schemas and non-finite numbers are refused in words."""

import dataclasses
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepscope.core.errors import DataError, StepscopeError
from stepscope.records import codec
from stepscope.records.cell import CellStatus
from stepscope.records.migrations import RENAMED
from stepscope.records.samples import SamplesHeader, StepSample

EXAMPLES = Path(__file__).parents[2] / "data" / "schema"

status_records = st.builds(
    CellStatus,
    cell_id=st.text(),
    status=st.sampled_from(["ok", "oom", "timeout", "killed"]),
    reason=st.none() | st.text(),
    failing_rank=st.none() | st.integers(0, 2**31),
    exit_codes=st.none() | st.dictionaries(st.text(), st.integers(-64, 255), max_size=3),
    wall_ns=st.none() | st.integers(0, 2**62),
)


def sample(**changes: object) -> StepSample:
    values = {f.name: 0 for f in dataclasses.fields(StepSample)} | {
        "warmup": False,
        "full": True,
        "loss_sum": 1.5,
    }
    return StepSample(**(values | changes))


@given(status_records)
def test_a_record_comes_back_as_it_was(record: CellStatus) -> None:
    assert codec.decode(codec.encode(record), CellStatus, source="x") == record


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_non_finite_number_is_never_written(value: float) -> None:
    with pytest.raises(StepscopeError, match="loss_sum"):
        codec.encode_line(sample(loss_sum=value))


def test_lines_come_back_and_a_torn_last_line_is_left_out() -> None:
    data = codec.encode_line(sample(step=1)) + codec.encode_line(sample(step=2)) + b'{"round":0,"st'
    assert [s.step for s in codec.decode_lines(data, StepSample, source="x")] == [1, 2]


def test_a_damaged_line_in_the_middle_is_an_error_with_its_line_number() -> None:
    data = codec.encode_line(sample(step=1)) + b"{broken\n" + codec.encode_line(sample(step=2))
    with pytest.raises(DataError, match=r"s\.jsonl:2"):
        list(codec.decode_lines(data, StepSample, source="s.jsonl"))


def test_a_newer_schema_is_refused_and_says_so() -> None:
    document = json.loads(codec.encode(CellStatus(cell_id="a", status="ok"))) | {"schema": "stepscope.status/99"}
    with pytest.raises(DataError, match="newer stepscope") as caught:
        codec.decode(json.dumps(document).encode(), CellStatus, source="status.json")
    assert "wrote it" in str(caught.value)


def test_another_kind_of_file_is_refused() -> None:
    data = codec.encode(CellStatus(cell_id="a", status="ok"))
    with pytest.raises(DataError, match=r"expected schema stepscope\.rank_samples/1"):
        codec.decode(data, SamplesHeader, source="x")


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"cell_id": 3}'])
def test_damage_is_one_clear_error_with_the_file(data: bytes) -> None:
    with pytest.raises(DataError, match=r"status\.json"):
        codec.decode(data, CellStatus, source="status.json")


def test_every_kind_has_a_frozen_example_of_every_version() -> None:
    for kind, (name, version) in codec.KINDS.items():
        for number in range(1, version + 1):
            older = next((old for old, new in RENAMED.items() if new == name), name)
            path = EXAMPLES / f"{name if number == version else older}-{number}.json"
            record = codec.decode(path.read_bytes(), kind, source=str(path))
            assert isinstance(record, kind)


def test_a_document_may_name_files_whose_names_are_no_utf8() -> None:
    text = codec.encode_document({"path": "x\udcff.log", "list": ["\udcfe", {"k\udcff": 1}], "plain": "\\udcff"})
    assert json.loads(text) == {"path": "x?.log", "list": ["?", {"k?": 1}], "plain": "\\udcff"}

"""Reading flight recorder dumps: what torch writes, and what must not be read."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from stepscope.core.errors import DataError, UsageError
from stepscope.records import codec
from stepscope.records.nccl import FlightDump
from stepscope.store.importers import detect, read_foreign
from stepscope.store.importers.flight_recorder import from_json, read_dump, read_folder


def entry(record_id: int = 0, **changes: Any) -> dict[str, Any]:
    return {
        "record_id": record_id, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": record_id + 1,
        "p2p_seq_id": 0, "op_id": record_id + 1, "profiling_name": "nccl:_all_gather_base", "state": "scheduled",
        "input_sizes": [[4, 2]], "input_dtypes": ["BFloat16"], "output_sizes": [[8, 2]], "output_dtypes": ["BFloat16"],
        "retired": False, "is_p2p": False, "time_created_ns": 17, "time_discovered_started_ns": None,
    } | changes  # fmt: skip


def nccl(*entries: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {
        "version": "2.9",
        "nccl_version": "2.27.3",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {"0": {"last_enqueued_collective": 1, "last_started_collective": -1,
                            "last_completed_collective": 0}},
        "entries": list(entries),
    } | changes  # fmt: skip


def write(path: Path, value: object, *, text: bool = False) -> Path:
    path.write_bytes(json.dumps(value).encode() if text else pickle.dumps(value))
    return path


class Hostile:
    """Unpickled by plain ``pickle.load`` it would make a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_a_pickle_with_code_is_refused_and_its_code_is_not_run(tmp_path: Path) -> None:
    made = tmp_path / "made"
    path = write(tmp_path / "_dump_0", nccl(entry(), surprise=Hostile(made)))
    with pytest.raises(DataError, match=r"refused: the pickle imports (posix|nt)\.mkdir") as caught:
        read_dump(path)
    assert "would run its code" in str(caught.value)
    assert not made.exists()


@pytest.mark.parametrize("value", [b"\x80\x04Pnobody\n.", b"\x80\x02I1\nQ."], ids=["PERSID", "BINPERSID"])
def test_a_pickle_that_points_outside_itself_is_refused(tmp_path: Path, value: bytes) -> None:
    (tmp_path / "_dump_0").write_bytes(value)
    with pytest.raises(DataError, match="outside object"):
        read_dump(tmp_path / "_dump_0")


@pytest.mark.parametrize("keep", [1, 2, 40, -1])
def test_a_cut_off_pickle_is_damaged_and_no_traceback(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "_dump_0"
    path.write_bytes(pickle.dumps(nccl(entry()))[:keep])
    with pytest.raises(DataError, match="_dump_0: damaged pickle"):
        read_dump(path)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("rank0.json", b'{"version": "2.9", "entr', "not readable as JSON"),
        ("rank0.json", b"{}", "no format version"),
        ("rank0.json", b'{"version": "1.5", "entries": []}', "format 1.5"),
        ("rank0.json", b'{"version": "3.0", "entries": []}', "format 3.0"),
        ("rank0.json", b'{"version": "2.9", "entries": [{"record_id": 1}]}', r"entries\[0\]"),
        ("notes_0.txt", b"Rank 12, fault_type: GPU_ERROR", "is neither a pickle"),
        ("rank0", b"", "is empty"),
        ("trace", json.dumps(nccl()).encode(), "no number"),
        ("rank7.json", json.dumps(nccl()).encode(), "rank 7 is not a member of its group 0"),
        ("rank0.json", json.dumps(nccl(entry(state="lost"))).encode(), "state is 'lost'"),
        ("rank0.json", json.dumps(nccl(pg_config={"0": {"ranks": "[0,"}})).encode(), "ranks are"),
        ("rank0.json", json.dumps(nccl(pg_config={"0": {"ranks": '"a"'}})).encode(), "ranks are"),
        ("rank0", pickle.dumps([1, 2]), "no format version"),
    ],
)
def test_what_is_no_dump_is_refused_with_the_file_and_the_reason(
    tmp_path: Path, name: str, data: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError, match=words) as caught:
        read_dump(path)
    assert name in str(caught.value)


def test_gloos_counters_also_count_what_it_does_not_record_and_are_left_out() -> None:
    calls = [
        entry(0, profiling_name="gloo:all_reduce", retired=True),
        entry(1, profiling_name="gloo:all_reduce"),
    ]
    plain = nccl(*calls, pg_config={"": {"name": "", "desc": "", "ranks": "[]"}})
    dump = from_json(json.dumps(plain), rank=5)
    assert [e.state for e in dump.entries] == ["completed", "scheduled"], "retired is all that gloo records"
    (group,) = dump.groups
    assert (group.ranks, group.last_enqueued) == (None, None)


def test_a_group_with_point_to_point_calls_has_no_counter() -> None:
    send = entry(0, is_p2p=True, p2p_seq_id=9, profiling_name="nccl:send 0->1")
    recv = entry(1, is_p2p=True, p2p_seq_id=10, profiling_name="nccl:recv 0<-1")
    dump = from_json(json.dumps(nccl(send, recv)), rank=0)
    assert [(e.op, e.source, e.destination, e.sequence) for e in dump.entries] == [
        ("send", 0, 1, 9),
        ("recv", 1, 0, 10),
    ]
    assert dump.groups[0].last_enqueued is None


def test_counters_of_groups_without_a_call_are_found_by_the_order_in_which_groups_were_made() -> None:
    config = {n: {"name": n, "desc": "", "ranks": "[0, 1]"} for n in ("0", "12", "3")}
    status = {
        n: {"last_enqueued_collective": e, "last_completed_collective": e} for n, e in (("0", 5), ("2", 6), ("10", 7))
    }
    plain = nccl(entry(pg_id=2, process_group=["3", "x"]), pg_config=config, pg_status=status)
    found = {g.name: g.last_enqueued for g in from_json(json.dumps(plain), rank=0).groups}
    assert found == {"0": 5, "3": 6, "12": 7}
    plain["entries"][0]["process_group"] = ["12", "x"]  # contradicts the order
    found = {g.name: g.last_enqueued for g in from_json(json.dumps(plain), rank=0).groups}
    assert found == {"0": None, "3": None, "12": 6}


@pytest.mark.parametrize(
    ("calls", "kept"),
    [
        ([entry(0), entry(1)], "all"),
        ([entry(7, retired=True), entry(8)], "latest"),
        ([entry(7), entry(8)], "pending"),
        ([entry(3), entry(8)], "pending"),
        ([], "pending"),
    ],
)
def test_what_a_dump_kept_shows_in_its_record_ids(calls: list[dict[str, Any]], kept: str) -> None:
    assert from_json(json.dumps(nccl(*calls)), rank=0).kept == kept


def test_a_folder_gives_a_dump_a_rank_and_says_why_it_left_out_the_rest(tmp_path: Path) -> None:
    for rank in (1, 0):
        write(tmp_path / f"_dump_{rank}", nccl(entry()))
    write(tmp_path / "copy_of_0.json", nccl(), text=True)
    (tmp_path / "README.md").write_text("notes")
    folder = read_folder(tmp_path)
    assert [d.rank for d in folder.dumps] == [0, 1]
    assert {Path(r.path).name: r.reason.split(": ", 1)[-1] for r in folder.refused}["README.md"].startswith("not a")
    assert any("already the dump of rank 0" in r.reason for r in folder.refused)


def test_a_folder_without_any_dump_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    with pytest.raises(DataError, match="holds no flight recorder dump"):
        read_folder(tmp_path)
    with pytest.raises(UsageError, match="is not a folder"):
        read_folder(tmp_path / "notes.txt")


def test_our_own_record_comes_back_as_it_was_and_knows_its_file(tmp_path: Path) -> None:
    dump = from_json(json.dumps(nccl(entry())), rank=1)
    path = tmp_path / "rank-00001.json"
    path.write_bytes(codec.encode_line(dump, header=True))
    again = read_dump(path)
    assert isinstance(again, FlightDump)
    assert again.entries == dump.entries
    assert again.source == str(path)


def test_a_folder_is_one_of_dumps_by_its_files(tmp_path: Path) -> None:
    inner = tmp_path / "run" / "flight"
    inner.mkdir(parents=True)
    write(inner / "_dump_0", nccl(entry()))
    assert detect(inner)[0] == "flight_recorder"


def test_of_many_files_that_are_no_dump_a_few_are_named(tmp_path: Path) -> None:
    write(tmp_path / "_dump_0", nccl(entry()))
    for number in range(30):
        (tmp_path / f"log{number}.txt").write_text("text")
    notes = read_foreign(tmp_path).notes
    assert len(notes) == 6
    assert notes[-1] == "25 more files left out"

"""The run folder on disk: whole files or none, one controller at a time, errors that say what to do."""

import multiprocessing
import os
from pathlib import Path

import pytest

from stepscope.core.errors import DataError, MissingError, UsageError
from stepscope.records import codec
from stepscope.records.cell import CellStatus
from stepscope.store import reader, writer
from stepscope.store.layout import holds_record
from stepscope.store.reader import read_bytes
from stepscope.store.writer import csv_text, hold_lock

STATUS = CellStatus(cell_id="a", status="ok")


def test_an_unwritable_folder_is_one_clear_error(tmp_path: Path) -> None:
    blocker = tmp_path / "run"
    blocker.write_text("a file, not a folder")
    with pytest.raises(MissingError, match="write to another folder"):
        writer.write_record(blocker / "cells" / "status.json", STATUS)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.parametrize("below", ["", "deeper/still"])
def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(MissingError) as caught:
        writer.make_dir(tmp_path / "file" / below)
    assert caught.value.what == f"{tmp_path / 'file'} is not a folder"


def test_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def to_full_disk(_: Path, data: bytes) -> None:
        with open("/dev/full", "wb", buffering=0) as full:  # noqa: PTH123
            full.write(data)

    monkeypatch.setattr(Path, "write_bytes", to_full_disk)
    with pytest.raises(MissingError, match="No space left on device") as caught:
        writer.write_record(tmp_path / "status.json", STATUS)
    assert "free some space" in str(caught.value)


def test_a_folder_that_is_no_run_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no run\.json"):
        reader.read_run(tmp_path)


def test_a_missing_record_is_none_but_a_damaged_one_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    assert reader.read_if_there(path, CellStatus) is None
    path.write_bytes(b"{")
    with pytest.raises(DataError, match=r"status\.json"):
        reader.read_if_there(path, CellStatus)


def _try_lock(path: Path, answers) -> None:
    try:
        with hold_lock(path):
            answers.put("held")
    except UsageError as error:
        answers.put(str(error))


def test_a_second_controller_is_refused_and_told_who_holds_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "run.lock"
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()

    def other_process_says() -> str:
        process = context.Process(target=_try_lock, args=(path, answers))
        process.start()
        answer = answers.get(timeout=60)
        process.join()
        return answer

    with hold_lock(path):
        assert f"pid {os.getpid()}" in other_process_says()
    assert other_process_says() == "held"
    answers.close()
    answers.join_thread()


@pytest.mark.parametrize("name", ["=HYPERLINK(1)", "+1+1", "-a", "@sum", "\tx"])
def test_no_cell_of_csv_is_a_formula(name: str) -> None:
    assert csv_text(["run"], [[name]]).splitlines()[1].strip('"') == f"'{name}"


def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="cannot read"):
        read_bytes(tmp_path / "pipe")


def test_a_pipe_that_is_called_as_a_record_is_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")
    assert not holds_record(tmp_path / "run.json", "run", beside=("cells",))


def test_whole_numbers_written_with_a_fraction_are_whole() -> None:
    text = codec.encode(CellStatus(cell_id="c", status="ok", attempt=3)).replace(b'"attempt": 3', b'"attempt": 3.0')
    assert codec.decode(text, CellStatus, source="s").attempt == 3
    with pytest.raises(DataError, match="not a valid CellStatus"):
        codec.decode(text.replace(b"3.0", b"3.5"), CellStatus, source="s")

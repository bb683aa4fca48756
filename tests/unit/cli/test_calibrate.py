"""`stepscope calibrate` on run folders written by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.calibration_rows import SIZES, row, sweep
from tests.commands import Ran

from stepscope.records import codec
from stepscope.records.calibration import Calibration
from stepscope.records.cell import RunRecord
from stepscope.records.comm import CommRow
from stepscope.records.environment import EnvironmentRecord

EXAMPLES = Path(__file__).parents[2] / "data" / "schema"


def run_folder(path: Path, rows: list[CommRow], *, kind: str = "comm") -> Path:
    path.mkdir()
    record = RunRecord(kind=kind, name="comm", matrix={}, cells=(), argv=("stepscope", "comm"))  # type: ignore[arg-type]
    (path / "run.json").write_bytes(codec.encode(record))
    (path / "environment.json").write_bytes((EXAMPLES / "environment-1.json").read_bytes())
    (path / "results.jsonl").write_bytes(b"".join(codec.encode_line(one, header=True) for one in rows))
    return path


def test_a_run_becomes_calib_json_beside_its_results(tmp_path: Path, ran: Ran) -> None:
    run = run_folder(tmp_path / "run", sweep() + sweep("barrier"))
    code, out, err = ran("calibrate", run)
    assert code == 0
    assert "all_reduce" in out
    assert "alpha us" in out
    assert "2 fits in" in err
    written = codec.decode((run / "calib.json").read_bytes(), Calibration, source="calib.json")
    assert [fit.op for fit in written.fits] == ["all_reduce", "barrier"]
    machine = codec.decode((run / "environment.json").read_bytes(), EnvironmentRecord, source="environment.json")
    assert written.machine.hosts == (machine.host,)


def test_json_is_the_file_itself_and_o_says_where(tmp_path: Path, ran: Ran) -> None:
    run = run_folder(tmp_path / "run", sweep())
    code, out, _ = ran("calibrate", run, "-o", tmp_path / "mine.json", "--json")
    assert code == 0
    assert json.loads(out)["schema"] == "stepscope.calib/1"
    assert (tmp_path / "mine.json").read_text() == out
    assert not (run / "calib.json").exists()


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        (sweep(sizes=SIZES[:3]), "3 sizes measured"),
        ([row(status="timeout", error="rank 1 never entered", size_bytes=None)], "rank 1 never entered"),
        ([], "no rows at all"),
    ],
)
def test_what_cannot_be_calibrated_is_refused_with_what_why_and_how(
    rows: list[CommRow], why: str, tmp_path: Path, ran: Ran
) -> None:
    run = run_folder(tmp_path / "run", rows)
    code, out, err = ran("calibrate", run)
    assert code == 2
    assert out == ""
    assert why in err
    assert "fix: " in err
    assert not (run / "calib.json").exists()


def test_a_bench_run_is_refused(tmp_path: Path, ran: Ran) -> None:
    code, _, err = ran("calibrate", run_folder(tmp_path / "run", [], kind="bench"))
    assert code == 2
    assert "bench run" in err
    assert "stepscope comm" in err


def test_no_folder_no_run_and_no_environment_are_refused(tmp_path: Path, ran: Ran) -> None:
    assert ran("calibrate", tmp_path / "nowhere")[0] == 2
    assert ran("calibrate", tmp_path)[0] == 2
    run = run_folder(tmp_path / "run", sweep())
    (run / "environment.json").unlink()
    code, _, err = ran("calibrate", run)
    assert code == 2
    assert "environment.json" in err

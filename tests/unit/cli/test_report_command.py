"""``stepscope report`` on a terminal: what is found, what is not, and what is left unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Ran
from tests.nccl_tests_log import log

pytestmark = pytest.mark.usefixtures("fresh_consoles")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Measured logs with a note each, and six files without a row."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(6):
        text = log([(1 << n, 10.0 + n) for n in range(10, 16)], average="250.1")
        (folder / f"all_reduce{number}.log").write_text(text)
        (folder / f"other{number}.log").write_text("nothing of nccl-tests\n")
    return folder


def test_nothing_found_is_said_and_so_are_notes_not_shown(logs: Path, tmp_path: Path, ran: Ran) -> None:
    code, out, _ = ran("report", logs, "-o", tmp_path / "out", "--txt")
    said = " ".join(out.split())
    assert code == 0
    assert "left out 6 files, 132 B: other files" in said
    assert "found no problem in what was read;" in said
    assert said.count("times are means") == 1
    assert said.index("found no problem") < said.index("left out")


def test_refused_datasets_start_no_drawing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Ran) -> None:
    started = []
    monkeypatch.setattr("stepscope.cli.report_run.get_ready", started.append)
    monkeypatch.setattr("stepscope.cli.report_run.usable_cores", lambda: 2)
    table = tmp_path / "metrics.csv"
    table.write_text("epoch,train_loss,train_time\n1,1.0,2.0\n2,0.9,2.1\n")
    code, _, err = ran("report", table, "--datasets", "nosuch", "-o", tmp_path / "out")
    assert code in (2, 3)
    assert "nosuch" in err
    assert started == []


def test_without_processes_this_one_draws(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Ran
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no shared memory")

    monkeypatch.setattr("stepscope.cli.report_run.usable_cores", lambda: 2)
    monkeypatch.setattr("stepscope.cli.report_run.get_ready", lambda _: None)
    monkeypatch.setattr("stepscope.api.report.side_by_side", refuse)
    assert ran("report", logs, "-o", tmp_path / "out", "--svg").code == 0
    assert list((tmp_path / "out").glob("*.svg"))


@pytest.mark.parametrize(
    ("stopped", "says"), [("charts.write", "files of the report in"), ("files.write_tables", "nothing is written in")]
)
def test_an_interrupt_says_what_is_written(
    stopped: str, says: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Ran
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("stepscope.cli.report_run.usable_cores", lambda: 1)
    monkeypatch.setattr(f"stepscope.report.{stopped}", interrupt)
    code, _, said = ran("report", logs, "-o", tmp_path / "out", "--txt", "--html", "--svg")
    assert code == 130
    assert says in said
    assert ("report.html is one of them" in said) is (stopped == "charts.write")


def test_a_former_reports_files_go_and_this_is_said(logs: Path, tmp_path: Path, ran: Ran) -> None:
    out, one = tmp_path / "out", tmp_path / "one.log"
    one.write_text((logs / "all_reduce0.log").read_text())
    for path, formats in ((logs, ("--csv", "--txt")), (one, ("--txt",)), (one, ("--txt", "--force"))):
        code, _, err = ran("report", path, "-o", out, *formats)
        assert code == (2 if formats == ("--txt",) else 0)
        if path == logs:
            (out / "mine.csv").write_text("1\n")
            assert (out / "collectives.csv").exists()
    assert "of the former report removed" in err
    assert {path.name for path in out.iterdir()} == {"performance_report.txt", "mine.csv", ".stepscope-report.json"}


def test_a_second_report_does_not_take_the_folder_of_another(
    logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ran: Ran
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "other").mkdir()
    again = tmp_path / "other" / logs.name
    again.mkdir()
    for path in logs.iterdir():
        (again / path.name).write_bytes(path.read_bytes())
    for path in (logs, again, logs, again):
        assert ran("report", path, "--txt").code == 0
    assert sorted(path.name for path in (tmp_path / "stepscope-report").iterdir()) == [logs.name, f"{logs.name}-2"]

"""``stepscope report`` on a terminal: what is found, what is not, and what is left unsaid."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.nccl_tests_log import log

from stepscope.cli.main import main

pytestmark = pytest.mark.usefixtures("fresh_consoles")


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A measured log and six files without a row: a note each."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "all_reduce.log").write_text(log([(1 << n, 10.0 + n) for n in range(10, 16)]))
    for number in range(6):
        (folder / f"other{number}.log").write_text("nothing of nccl-tests\n")
    return folder


def test_nothing_found_is_said_and_so_are_notes_not_shown(
    logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["report", str(logs), "-o", str(tmp_path / "out"), "--txt"])
    said = " ".join(capsys.readouterr().out.split())
    assert not ended.value.code
    assert "no rule found anything: " in said
    assert "lacked data" in said
    assert "notes more" in said

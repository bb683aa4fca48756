"""Where ``stepscope report`` writes without ``-o``: under the job's name, and never over a report of other results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.diaries import planted

from stepscope.cli.main import main

pytestmark = pytest.mark.usefixtures("fresh_consoles")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def report(capsys: pytest.CaptureFixture[str], *options: str) -> tuple[Path, dict[str, object]]:
    with pytest.raises(SystemExit) as ended:
        main(["report", *options, "--csv", "--json"])
    assert not ended.value.code
    document = json.loads(capsys.readouterr().out)
    return Path(document["files"][0]).parent, document


def test_a_profile_is_named_after_its_folder_and_another_one_is_kept(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = planted(here / "a" / "train"), planted(here / "b" / "train", ranks=4)
    base = Path("stepscope-report")
    assert report(capsys, str(first))[0] == base / "train"
    kept = (base / "train" / "step_parts.csv").read_bytes()
    assert report(capsys, str(second))[0] == base / "train-2"
    assert (base / "train" / "step_parts.csv").read_bytes() == kept
    assert report(capsys, str(first))[0] == base / "train"
    assert report(capsys, str(second))[0] == base / "train-2"
    assert report(capsys, str(second), "-o", str(base / "train"), "--force")[0] == base / "train"


def test_the_document_has_the_verdict(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, document = report(capsys, str(planted(here / "train")))
    assert document["verdict"]["kind"] == "straggler"

"""What `stepscope trace` says first of jobs with a planted trouble, letter by letter.

To renew after a wanted change: ``STEPSCOPE_RENEW_GOLDEN=1 pytest tests/golden``, then read the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.golden.agreed import agreed
from tests.trace_builder import build, write_job

from stepscope.cli.console import err, out
from stepscope.cli.main import main

JOBS: dict[str, dict[str, Any]] = {
    "straggler": {"world": 4, "steps": 6, "late": {2: 900_000}, "late_kind": "compute"},
    "launches": {"world": 2, "steps": 4, "late": {0: 4_000_000, 1: 4_000_000}, "late_kind": "launch"},
    "naive": {"world": 2, "steps": 4, "shape": "naive", "transfer_ns": 300_000},
    "hidden": {"world": 2, "steps": 4, "transfer_ns": 20_000, "backward_ns": 900_000, "forward_ns": 900_000},
}


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("COLUMNS", "110")
    out.cache_clear()
    err.cache_clear()
    yield
    out.cache_clear()
    err.cache_clear()


@pytest.mark.parametrize("name", JOBS)
def test_the_findings_read_as_agreed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_job(build(**JOBS[name]), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["trace", name])
    assert not stop.value.code
    text, _, _ = capsys.readouterr().out.partition("\n\nTime budget")
    agreed(f"trace/{name}.txt", text + "\n")

"""Reports of Nsight Systems are exported by the installed nsys, or answered with the command that would."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.unit.traces.test_nsys import CALLS, KERNELS, STRINGS, export

from stepscope.core.errors import DataError, MissingError
from stepscope.traces.discover import candidates
from stepscope.traces.load import load_file


@pytest.fixture
def report(tmp_path: Path) -> Path:
    path = tmp_path / "job" / "rank 3.nsys-rep"
    path.parent.mkdir()
    path.write_bytes(b"NSYS report")
    return path


def _install(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    (folder / "bin").mkdir()
    nsys = folder / "bin" / "nsys"
    nsys.write_text(f"#!/bin/sh\n{script}\n")
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")


def test_without_nsys_the_answer_is_the_command(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(MissingError) as refused:
        candidates([report])
    assert f"nsys export --type sqlite --output '{report.with_suffix('.sqlite')}' '{report}'" in str(refused.value)


@pytest.mark.parametrize("by_folder", [True, False])
def test_the_installed_nsys_exports_once(
    report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_folder: bool
) -> None:
    made = export(tmp_path / "made.sqlite", *STRINGS, *KERNELS, *CALLS)
    calls = tmp_path / "calls"
    _install(tmp_path, monkeypatch, f'echo "$@" >> {calls}; cp {made} "$7"')
    for _ in range(2):
        files, _named = candidates([report.parent if by_folder else report])
        assert files == [report.with_suffix(".sqlite")]
    assert len(calls.read_text().splitlines()) == 1
    assert len(load_file(files[0]).events)


def test_what_nsys_says_is_passed_on(report: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _install(tmp_path, monkeypatch, "echo the report is damaged >&2; exit 1")
    with pytest.raises(DataError, match="nsys could not export it") as refused:
        candidates([report])
    assert refused.value.why == "the report is damaged"

"""What `trace` shows first, and what it says of the time that it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.commands import Ran
from tests.trace_builder import build, write_job

from stepscope.cli import trace_run
from stepscope.cli.commands.trace import Trace
from stepscope.cli.evidence import Watch
from stepscope.core.errors import DataError

pytestmark = pytest.mark.usefixtures("fresh_consoles")


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return write_job(build(world=2), tmp_path)


def test_the_budget_of_a_large_job_comes_before_its_findings(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace_run.run(Trace(paths=(str(job),)))
    at_once = capsys.readouterr().out
    monkeypatch.setattr(trace_run, "EARLY_FROM_BYTES", 0)
    seen = []
    diagnosed = trace_run._diagnosed
    monkeypatch.setattr(
        trace_run, "_diagnosed", lambda *a, **k: (seen.append(capsys.readouterr().out), diagnosed(*a, **k))[1]
    )
    trace_run.run(Trace(paths=(str(job),)))
    later = capsys.readouterr().out
    assert "device events" in seen[0]
    assert "Time budget and overlap" in seen[0]
    assert "Overlap of communication with computation" in seen[0]
    assert "Time budget and overlap" not in later
    assert "bound by" in later
    shown = at_once.splitlines()
    row = next(line for line in seen[0].splitlines() if line.startswith("   0 "))
    assert any(line.startswith(row.rstrip()) for line in shown)  # the same figures
    assert set(shown[shown.index("Collectives") :]) <= set(later.splitlines())


def test_what_is_asked_for_alone_is_shown_once(
    job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trace_run, "EARLY_FROM_BYTES", 0)
    trace_run.run(Trace(paths=(str(job),), show="budget,steps"))
    assert capsys.readouterr().out.count("Time budget and overlap") == 1


def test_the_time_left_is_learned_from_the_files_own_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for file in files:
        file.write_bytes(bytes(1000))
    watch = Watch()
    watch.started(files)
    now[0] += 0.1
    watch.advanced(files[0], 300)  # too soon to tell
    assert capsys.readouterr().err == ""
    now[0] += 1.9
    watch.advanced(files[0], 500)  # a quarter in two seconds
    watch.advanced(files[0], 600)
    assert capsys.readouterr().err == "reading 2 traces, 2.00 kB: about 6 s more\n"
    now[0] += 6
    watch.end()
    assert capsys.readouterr().err == "read in 8.0 s\n"


def test_what_is_soon_read_is_not_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    file = tmp_path / "a.json"
    file.write_bytes(bytes(1000))
    watch = Watch()
    watch.started([file])
    now[0] += 1
    watch.advanced(file, 500)
    watch.done(file)
    watch.end()
    assert capsys.readouterr().err == ""


def test_of_a_file_of_another_kind_it_says_which_and_who_reads_it(tmp_path: Path) -> None:
    table = tmp_path / "my results.csv"
    table.write_text("world_size,samples_per_s\n1,100\n2,190\n")
    with pytest.raises(DataError) as refused:
        trace_run.run(Trace(paths=(str(table),)))
    assert refused.value.why == "it is: table of results (CSV, Markdown, JSON records)"
    assert refused.value.fix == f"read it with `stepscope diagnose '{table}'`"


@pytest.mark.parametrize("option", ["--flop", "--hardware-flop"])
def test_a_step_has_no_negative_flop(job: Path, option: str, ran: Ran) -> None:
    code, _, err = ran("trace", job, option, "-1")
    assert code == 2
    assert f"error: {option}: expected at least 1" in err

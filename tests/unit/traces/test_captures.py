"""Several captures in one folder: told apart by names, else by time, else refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_builder import build, rank_text, write_job
from tests.trace_layout import write

from stepscope.cli.main import main
from stepscope.core.errors import DataError
from stepscope.examples.training_job import BASE_TIME_NS
from stepscope.results.open import Reading, load_source
from stepscope.store.importer import Stated
from stepscope.traces.job import analyse_captures, analyse_job

HOUR_NS = 3_600_000_000_000


def modes(folder: Path, name: str = "{mode}_rank{rank}") -> Path:
    """Two ranks of two strategies in one folder; the naive one reduces after the backward pass."""
    for mode, shape in (("naive", "naive"), ("ddp", "ddp")):
        write_job(build(shape=shape, world=2), folder, name=lambda rank, mode=mode: name.format(mode=mode, rank=rank))
    return folder


def later(folder: Path, name: str, *, by_ns: int) -> Path:
    """A second capture of the same ranks, taken later; its files' names say nothing."""
    for capture in range(2):
        job = build(world=2)
        for rank in range(2):
            text = rank_text(job, rank).replace(str(BASE_TIME_NS), str(BASE_TIME_NS + capture * by_ns))
            write(folder / name.format(rank=rank, number=1000000 * (capture + 1) + rank), text)
    return folder


def test_captures_are_told_apart_by_their_names(tmp_path: Path) -> None:
    found = analyse_captures(modes(tmp_path))
    assert set(found) == {"naive", "ddp"}
    for mode, summary in found.items():
        assert [p.facts.rank for p in summary.ranks] == [0, 1]
        assert all(Path(p.facts.file).name.startswith(mode) for p in summary.ranks)
        assert all(len(i.ranks) == 2 for i in summary.collectives.instances)


def test_captures_are_told_apart_by_time_where_names_do_not_tell(tmp_path: Path) -> None:
    folder = later(tmp_path, "host_{number}.pt.trace.json", by_ns=HOUR_NS)
    found = analyse_captures(folder)
    assert list(found) == ["capture 1", "capture 2"]
    assert [[Path(p.facts.file).name for p in s.ranks] for s in found.values()] == [
        ["host_1000000.pt.trace.json", "host_1000001.pt.trace.json"],
        ["host_2000000.pt.trace.json", "host_2000001.pt.trace.json"],
    ]


def test_files_of_one_rank_and_one_time_are_refused(tmp_path: Path) -> None:
    folder = later(tmp_path, "host_{number}.pt.trace.json", by_ns=0)
    with pytest.raises(DataError, match="rank 0 twice"):
        analyse_captures(folder)


def test_one_capture_is_one_job_whatever_its_files_are_called(tmp_path: Path) -> None:
    assert list(analyse_captures(write_job(build(world=2), tmp_path))) == [""]
    with pytest.raises(DataError, match="2 captures in these files: ddp, naive"):
        analyse_job(modes(tmp_path / "modes"))


def test_folders_named_after_ranks_are_no_captures(tmp_path: Path) -> None:
    for mode in ("naive", "ddp"):
        write_job(build(world=2, shape=mode), tmp_path, name=lambda rank, mode=mode: f"rank{rank}/{mode}")
    files = sorted(tmp_path.glob("*/*.json"))
    assert set(analyse_captures(files)) == {"naive", "ddp"}


def test_trace_shows_every_capture_and_refuses_what_is_of_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = modes(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["trace", str(folder), "--show", "budget"])
    assert not stop.value.code
    said = capsys.readouterr().out
    assert "2 captures: ddp, naive" in said
    assert said.count("Time budget") == 2
    for option in (["--json"], ["--csv", str(tmp_path / "out")], ["--fail-if", "idle_fraction > 0.9"]):
        with pytest.raises(SystemExit) as stop:
            main(["trace", str(folder), *option])
        assert stop.value.code == 2
        assert "2 captures in these files" in capsys.readouterr().err


def test_diagnose_looks_at_every_capture(tmp_path: Path) -> None:
    evidence = load_source(modes(tmp_path), Reading(stated=Stated()))
    assert {job.name for job in evidence.traces} == {"naive", "ddp"}
    assert any("2 captures of the same ranks" in note for note in evidence.all_notes)

"""Several captures in one folder: told apart by names, else by time, else refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.trace_builder import build, rank_text, write_job
from tests.trace_layout import write

from stepscope.cli.main import main
from stepscope.core.errors import DataError, UsageError
from stepscope.examples.training_job import BASE_TIME_NS
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.open import Reading, load_source
from stepscope.store.importer import Stated
from stepscope.traces.job import analyse_captures, analyse_job
from stepscope.traces.sections import Wanted

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


def files_of(summary: TraceSummary) -> list[str]:
    return [Path(p.facts.file).name for p in summary.ranks]


@pytest.mark.parametrize(("window", "first"), [(None, 2), (2, 2), (1, 1)])
def test_of_windows_of_one_job_the_newest_is_read_or_the_one_asked_for(
    tmp_path: Path, window: int | None, first: int
) -> None:
    folder = later(tmp_path, "host_{number}.pt.trace.json", by_ns=HOUR_NS)
    found = analyse_captures(folder, Wanted(window=window))
    assert list(found) == [""]
    assert files_of(found[""]) == [f"host_{first}000000.pt.trace.json", f"host_{first}000001.pt.trace.json"]
    (note,) = [n for n in found[""].notes if "2 windows" in n.text]
    assert f"window {first} is shown" in note.text
    assert f"host_{3 - first}000000" in note.text


def test_windows_are_told_by_numbers_in_their_names_where_no_time_tells(tmp_path: Path) -> None:
    for step in (100, 20):
        for rank in range(2):
            text = rank_text(build(world=2), rank).replace("baseTimeNanoseconds", "base")
            write(tmp_path / f"r{rank}_step{step}.json", text)
    (summary,) = analyse_captures(tmp_path).values()
    assert files_of(summary) == ["r0_step100.json", "r1_step100.json"]


def test_folders_of_windows_are_windows_of_one_job(tmp_path: Path) -> None:
    for number, folder in enumerate(("iteration_10", "iteration_9")):
        for rank in range(2):
            text = rank_text(build(world=2), rank).replace(str(BASE_TIME_NS), str(BASE_TIME_NS - number * HOUR_NS))
            write(tmp_path / folder / f"rank{rank}_trace.json", text)
    (summary,) = analyse_captures(tmp_path).values()
    assert {Path(p.facts.file).parent.name for p in summary.ranks} == {"iteration_10"}


def test_times_in_names_tell_windows_whose_clocks_are_alike(tmp_path: Path) -> None:
    for when in (17360001000, 17360009000):
        for rank in range(2):
            write(tmp_path / f"worker{rank}.{when + rank}.pt.trace.json", rank_text(build(world=2), rank))
    for window, when in ((None, "1736000900"), (1, "1736000100")):
        (summary,) = analyse_captures(tmp_path, Wanted(window=window)).values()
        assert [name.split(".")[1][:10] for name in files_of(summary)] == [when, when]


def test_the_newest_window_is_one_with_all_ranks(tmp_path: Path) -> None:
    folder = later(tmp_path, "host_{number}.pt.trace.json", by_ns=HOUR_NS)
    (folder / "host_2000001.pt.trace.json").unlink()
    (summary,) = analyse_captures(folder).values()
    assert [p.facts.rank for p in summary.ranks] == [0, 1]


def test_a_window_that_is_not_there_is_a_mistake(tmp_path: Path) -> None:
    folder = later(tmp_path / "two", "host_{number}.pt.trace.json", by_ns=HOUR_NS)
    for path, window in ((folder, 3), (write_job(build(world=2), tmp_path / "one"), 2), (modes(tmp_path / "modes"), 1)):
        with pytest.raises(UsageError, match=f"--window {window}"):
            analyse_captures(path, Wanted(window=window))


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

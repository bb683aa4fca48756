"""A report in the folder of a former one: what `report` wrote there goes, what others put there stays."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from stepscope.report.files import LIST, is_of_others, remember, replace_former
from stepscope.store.writer import write_bytes

ALL = ("html", "png", "svg", "csv", "tex", "md", "txt")


def report(folder: Path, of: str, *names: str, formats: Iterable[str] = ALL) -> list[str]:
    """Names of what a report of ``of`` removes that writes these files."""
    written = [folder / name for name in names]
    for path in written:
        write_bytes(path, f"{of} {path.name}".encode())
    return [path.name for path in replace_former(folder, written, of=[of], formats=frozenset(formats))]


def there(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} - {LIST}


def test_files_that_the_new_report_does_not_write_go_and_a_users_own_stay(tmp_path: Path) -> None:
    assert report(tmp_path, "a", "report.html", "loss.png", "loss.vl.json", "charts.md", "scaling.csv") == []
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "scaling.csv").write_text("changed by me")
    removed = report(tmp_path, "b", "report.html", "memory.png", "memory.vl.json", "charts.md")
    assert removed == ["loss.png", "loss.vl.json"]
    assert there(tmp_path) == {"report.html", "memory.png", "memory.vl.json", "charts.md", "notes.txt", "scaling.csv"}
    assert (tmp_path / "scaling.csv").read_text() == "changed by me"


def test_other_formats_of_the_same_results_are_added(tmp_path: Path) -> None:
    report(tmp_path, "a", "report.html", "merged.json.gz", formats=["html"])
    report(tmp_path, "a", "loss.png", "loss.vl.json", "charts.md", formats=["png"])
    assert report(tmp_path, "a", "scaling.csv", "runs.md", formats=["csv", "md"]) == []
    assert len(there(tmp_path)) == 7
    assert report(tmp_path, "a", "memory.svg", "memory.vl.json", "charts.md", formats=["svg"]) == ["loss.vl.json"]
    assert report(tmp_path, "a", "report.html", formats=["html"]) == ["merged.json.gz"]
    assert set(report(tmp_path, "b", "report.html", formats=["html"])) == {
        "loss.png", "scaling.csv", "runs.md", "memory.svg", "memory.vl.json", "charts.md",
    }  # fmt: skip


def test_what_a_stopped_report_left_goes_with_the_next(tmp_path: Path) -> None:
    report(tmp_path, "a", "report.html", "loss.png")
    write_bytes(tmp_path / "memory.png", b"half a report")
    remember(tmp_path, [tmp_path / "memory.png"])
    assert report(tmp_path, "a", "report.html") == ["loss.png", "memory.png"]


@pytest.mark.parametrize("name", ["../outside.txt", "/etc/none", LIST])
def test_a_list_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "report"
    report(folder, "a", "report.html", "loss.png")
    (tmp_path / "outside.txt").write_bytes(b"a loss.png")
    (folder / LIST).write_text((folder / LIST).read_text().replace('"loss.png"', f'"{name}"'))
    assert report(folder, "b", "report.html") == []
    assert (tmp_path / "outside.txt").exists()


def test_a_damaged_list_removes_nothing(tmp_path: Path) -> None:
    report(tmp_path, "a", "report.html", "loss.png")
    (tmp_path / LIST).write_text("{")
    assert report(tmp_path, "b", "report.html") == []
    assert there(tmp_path) == {"report.html", "loss.png"}


def test_only_a_finished_report_of_other_results_is_in_the_way(tmp_path: Path) -> None:
    assert not is_of_others(tmp_path, ["a"])
    report(tmp_path, "a", "report.html")
    assert is_of_others(tmp_path, ["b"])
    assert not is_of_others(tmp_path, ["a"])
    (tmp_path / "report.html").unlink()
    assert not is_of_others(tmp_path, ["b"])
    report(tmp_path, "a", "report.html")
    remember(tmp_path, [tmp_path / "report.html"])
    assert not is_of_others(tmp_path, ["b"])

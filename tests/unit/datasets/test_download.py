"""Fetching public files: checksum, nothing half-made, clear errors. No test leaves this machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from stepscope.core.errors import DataError, MissingError
from stepscope.datasets import REGISTRY, _files
from stepscope.datasets._files import PublicFile, fetch

CONTENT = b"pretend data" * 1000


@pytest.fixture
def source(tmp_path: Path) -> PublicFile:
    origin = tmp_path / "origin.bin"
    origin.write_bytes(CONTENT)
    return PublicFile(name="got.bin", url=origin.as_uri(), md5=hashlib.md5(CONTENT).hexdigest())


def test_a_file_arrives_with_its_checksum_checked(source: PublicFile, tmp_path: Path) -> None:
    fetch([source], tmp_path / "data" / "toy")
    assert (tmp_path / "data" / "toy" / "got.bin").read_bytes() == CONTENT
    assert [p.name for p in (tmp_path / "data" / "toy").iterdir()] == ["got.bin"]


def test_a_wrong_checksum_is_one_error_and_leaves_nothing(source: PublicFile, tmp_path: Path) -> None:
    wrong = PublicFile(name=source.name, url=source.url, md5="0" * 32)
    with pytest.raises(DataError, match=f"expected MD5 {'0' * 32}; found {source.md5} in 12000 bytes"):
        fetch([wrong], tmp_path / "data")
    assert list((tmp_path / "data").iterdir()) == []


def test_a_file_that_is_there_is_not_fetched_again(source: PublicFile, tmp_path: Path) -> None:
    (tmp_path / "got.bin").write_bytes(b"mine")
    fetch([source], tmp_path)
    assert (tmp_path / "got.bin").read_bytes() == b"mine"


def test_an_address_that_cannot_be_reached_is_one_error(tmp_path: Path) -> None:
    gone = PublicFile(name="got.bin", url=(tmp_path / "nowhere").as_uri(), md5="0" * 32)
    with pytest.raises(MissingError, match="cannot download") as caught:
        fetch([gone], tmp_path / "data")
    assert "--data-dir" in str(caught.value)
    assert list((tmp_path / "data").iterdir()) == []


def test_a_folder_that_cannot_be_made_is_one_error(source: PublicFile, tmp_path: Path) -> None:
    with pytest.raises(MissingError, match="cannot write"):
        fetch([source], tmp_path / "origin.bin" / "below")


@pytest.mark.parametrize("key", ["mnist", "ag_news", "imdb"])
def test_download_is_asked_for_all_files_and_only_where_they_are_missing(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[list[str], Path]] = []
    monkeypatch.setattr(_files, "fetch", lambda sources, folder: asked.append(([s.name for s in sources], folder)))
    dataset = REGISTRY.load(key)
    assert dataset.download is not None
    (tmp_path / key).mkdir()
    dataset.download(dataset.options(), tmp_path)
    [(names, folder)] = asked
    assert folder == tmp_path / key
    if key != "imdb":
        for name in names:
            (folder / name).write_bytes(b"")
    else:
        (folder / names[0]).write_bytes(b"")
    assert set(dataset.locate(dataset.options(), tmp_path).values()) == {folder / name for name in names}
    dataset.download(dataset.options(), tmp_path)
    assert len(asked) == 1

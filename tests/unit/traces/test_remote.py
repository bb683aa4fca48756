"""Traces behind URLs, in file systems of fsspec that need no network."""

from __future__ import annotations

import gzip
import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.trace_builder import build, rank_text

from stepscope.core.errors import DataError, MissingError, NoTraceError, StepscopeError
from stepscope.core.words import url_of
from stepscope.records.trace_summary import TraceSummary
from stepscope.traces.discover import candidates
from stepscope.traces.job import analyse_captures, analyse_job
from stepscope.traces.remote import RemoteFile, _explained_error, _http_status, _Stream

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")

JOB = build(world=3, steps=2, layers=2, late={1: 300_000})


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    """One rank is packed, and a JSON file that is no trace lies beside them."""
    fs = fsspec.filesystem("memory")
    for rank in range(3):
        text = rank_text(JOB, rank).encode()
        fs.pipe(f"/job/rank-{rank}.json" + (".gz" if rank == 2 else ""), gzip.compress(text) if rank == 2 else text)
    fs.pipe("/job/notes.json", b'{"a": 1}')
    fs.pipe("/apart/rank0/t.json", rank_text(JOB, 0).encode())
    fs.pipe("/apart/rank1/t.json", rank_text(JOB, 1).encode())
    fs.pipe("/none/readme.txt", b"")
    yield "memory://job"
    fs.rm("/", recursive=True)


def _figures(summary: TraceSummary) -> list[tuple[object, ...]]:
    return [(p.facts.rank, p.facts.size_bytes, p.budget, p.steps, p.communication) for p in summary.ranks]


def test_a_bucket_is_listed_and_gives_what_the_same_files_give_here(bucket: str, tmp_path: Path) -> None:
    for each in fsspec.filesystem("memory").glob("/job/*"):
        (tmp_path / Path(each).name).write_bytes(fsspec.filesystem("memory").cat(each))
    here, behind = analyse_job(tmp_path), analyse_job(bucket)
    assert _figures(behind) == _figures(here)
    assert behind.stragglers == here.stragglers
    assert [p.facts.file for p in behind.ranks] == [
        "memory:///job/rank-0.json",
        "memory:///job/rank-1.json",
        "memory:///job/rank-2.json.gz",
    ]
    assert [note.kind for note in behind.notes] == ["beside"]
    assert _figures(analyse_job(tmp_path.as_uri())) == _figures(here)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("memory://job", ["notes.json", "rank-0.json", "rank-1.json", "rank-2.json.gz"]),
        ("memory://job/rank-[01].json", ["rank-0.json", "rank-1.json"]),
        ("memory://job/rank-1.json", ["rank-1.json"]),
        ("memory://apart", ["t.json", "t.json"]),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_which_files_are_meant(given: str, found: list[str]) -> None:
    assert [file.name for file in candidates([given])[0]] == found


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ("memory://job/rank-9.json", DataError, "no such file or folder"),
        ("memory://none", NoTraceError, "no trace files there"),
        ("memory://job/x.sqlite", DataError, "cannot be read in place"),
        ("memory://job/notes.json", NoTraceError, "not a PyTorch profiler trace"),
        ("nope://job", DataError, "no such protocol"),
    ],
)
@pytest.mark.usefixtures("bucket")
def test_what_cannot_be_read_says_why(given: str, error: type[StepscopeError], said: str) -> None:
    with pytest.raises(error, match=said):
        analyse_captures(given)


@pytest.mark.parametrize(
    ("scheme", "module", "package"), [("s3", "s3fs", "s3fs"), ("gs", "gcsfs", "gcsfs"), ("ssh", "paramiko", "paramiko")]
)
def test_a_protocol_without_its_package_names_the_package(
    monkeypatch: pytest.MonkeyPatch, scheme: str, module: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingError) as caught:
        analyse_captures(f"{scheme}://there/job")
    assert package in (caught.value.fix or "")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("s3://bucket/a", "s3://bucket/a"),
        (Path("https://host:80/a/b.json"), "https://host:80/a/b.json"),
        (Path("file:///tmp/a"), "file:///tmp/a"),
        ("traces/a:b.json", None),
        ("/tmp/job", None),
        ("C:/job", None),
    ],
)
def test_what_a_url_is(given: object, url: str | None) -> None:
    assert url_of(given) == url


def test_a_remote_file_travels_between_processes() -> None:
    file = RemoteFile("memory://job/rank-1.json", size=7, listed=True)
    again = pickle.loads(pickle.dumps(file))
    assert (again, again.listed, again.stat().st_size, again.suffix, again.parent.name) == (
        file,
        True,
        7,
        ".json",
        "job",
    )


class _Once:
    """Sends its bytes once, a few at a time."""

    def __init__(self, text: bytes) -> None:
        self.left = text

    def read(self, size: int) -> bytes:
        chunk, self.left = self.left[: min(size, 3)], self.left[min(size, 3) :]
        return chunk


def test_a_stream_goes_back_to_its_first_bytes_without_asking_again() -> None:
    stream = _Stream("u", _Once(b"0123456789"))
    assert stream.read(4) == b"012"
    stream.seek(0)
    assert b"".join(iter(lambda: stream.read(2), b"")) == b"0123456789"
    assert stream.tell() == 10
    with pytest.raises(OSError, match="from its start"):
        stream.seek(99)


@pytest.mark.parametrize(
    ("status", "said"), [(401, "access denied"), (403, "access denied"), (404, "no such file"), (500, "cannot be read")]
)
def test_a_status_is_found_in_what_an_error_was_raised_from(status: int, said: str) -> None:
    inner = OSError("refused")
    inner.status = status  # type: ignore[attr-defined]
    error = FileNotFoundError("u")
    error.__cause__ = inner
    assert _http_status(error) == status
    assert said in _explained_error("u", error).what

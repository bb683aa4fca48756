"""A report takes the place of the former one in its folder: what `report` wrote there goes, and no other file."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.cell import ReportFiles
from stepscope.report.figures import CAPTIONS
from stepscope.store.reader import read_if_there
from stepscope.store.writer import write_record, writing

LIST = ".stepscope-report.json"
CHARTS = frozenset({"png", "svg", "pdf"})


def is_of_others(folder: Path, of: Sequence[str]) -> bool:
    """Whether the report in ``folder`` is of other results than ``of``; False where none is, or one that was stopped."""
    former = _former(folder)
    left = any((folder / name).exists() for name in former.files)
    return left and former.of not in ("", _hash(of))


def replace_former(
    folder: Path, written: Sequence[Path], *, of: Sequence[str], formats: Collection[str]
) -> tuple[Path, ...]:
    """Remove what the former report left in ``folder`` and this one did not write; the files removed.

    A report of the same results (``of``) in other ``formats`` adds to the former one: the files that it has in others stay.
    A file that is not as it was written stays, too. Raises WriteError.
    """
    former = _former(folder)
    names = {path.name for path in written}
    same = _hash(of)
    stale = {
        name
        for name in former.files
        if name not in names and (former.of != same or not _formats(name).isdisjoint(formats))
    }
    removed = [folder / name for name in sorted(stale) if _is_as_written(folder / name, former.files[name])]
    for path in removed:
        with writing(path):
            path.unlink(missing_ok=True)
    if written or former.files:
        kept = {name: digest for name, digest in former.files.items() if name not in stale | names}
        write_record(folder / LIST, ReportFiles(of=same, files=kept | _digests(written)))
    return tuple(removed)


def _hash(of: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(of).encode(errors="surrogateescape")).hexdigest()


def remember(folder: Path, written: Iterable[Path]) -> None:
    """Note the files of a report that was stopped, so that the next one takes their place. Raises WriteError."""
    former = _former(folder)
    write_record(folder / LIST, ReportFiles(of="", files={**former.files, **_digests(written)}))


def _former(folder: Path) -> ReportFiles:
    """What the last report wrote: nothing where no list says so; names with a folder in them are none of a report's."""
    found = None
    with suppress(DataError):
        found = read_if_there(folder / LIST, ReportFiles)
    if found is None:
        return ReportFiles(of="", files={})
    return ReportFiles(of=found.of, files={n: d for n, d in found.files.items() if Path(n).name == n and n != LIST})


def _formats(name: str) -> frozenset[str]:
    """The options of `report` with which it writes this file."""
    if name == CAPTIONS or name.endswith(".vl.json"):
        return CHARTS
    return frozenset({"html" if name.endswith(".gz") else Path(name).suffix.lstrip(".")})


def _is_as_written(path: Path, digest: str) -> bool:
    return path.is_file() and not path.is_symlink() and _digest(path) == digest


def _digests(paths: Iterable[Path]) -> dict[str, str]:
    return {path.name: _digest(path) for path in paths if path.is_file()}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

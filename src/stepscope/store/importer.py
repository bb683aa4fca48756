"""What an importer is, and formats of which a folder holds several files: which of them are known, and reading them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TypeVar

from stepscope.core.errors import DataError
from stepscope.core.words import listed
from stepscope.records.imported import Imported, LeftOut, Stated
from stepscope.store.files import files_below, head_of, is_about

NAMED = 5
"""Files left out that a note names one by one."""

OTHER_KIND = "of another kind"
"""Why a reader leaves a file out that is none of its own."""

HEAD_BYTES = 64 << 10
"""What a file is told by: enough for the header lines that a launcher puts before the tool's own."""

START_BYTES = 1 << 20
"""What a job's log is told by: launch scripts that echo themselves put up to 100 KB before the job's first line."""


@dataclass(frozen=True)
class Candidate:
    """A path that some importer may know. A folder has no ``head``; look at ``files``. stated: what the user says of it.

    only: of a folder, the files that are meant; None: all of them.
    """

    path: Path
    stated: Stated = field(default_factory=Stated)
    only: tuple[Path, ...] | None = None

    @cached_property
    def is_folder(self) -> bool:
        return self.path.is_dir()

    @cached_property
    def head(self) -> bytes:
        """The first 64 KiB, unpacked where it is gzip; empty for a folder and for what cannot be read."""
        return b"" if self.is_folder else head_of(self.path, HEAD_BYTES)

    @cached_property
    def start(self) -> bytes:
        """The same of the first MiB."""
        return self.head if len(self.head) < HEAD_BYTES else head_of(self.path, START_BYTES)

    @cached_property
    def text(self) -> str:
        """``head`` as text; undecodable bytes become replacement characters."""
        return self.head.decode("utf-8", errors="replace")

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """Files below a folder, sorted, hidden ones left out; for a file, itself."""
        if self.only is not None:
            return self.only
        return files_below(self.path) if self.is_folder else (self.path,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What an importer's file declares of the files that it reads, so that it loads only for those that may be its own.

    title: what it reads, in words for `did you mean` and the table of formats (``nccl-tests output``). rank: lower is
    asked first; a specific format goes before a general one. marks: texts of which one stands in every file's beginning
    or name. suffixes: of every file. Either empty: any. deep: the mark may stand behind the first 64 KiB.
    """

    title: str
    rank: int = 50
    marks: tuple[str, ...] = ()
    suffixes: tuple[str, ...] = ()
    deep: bool = False

    def may_be(self, file: Candidate) -> bool:
        if self.suffixes and file.path.suffix.lower() not in self.suffixes:
            return False
        head = file.start if self.deep else file.head
        return not self.marks or any(mark.encode() in head or mark in file.path.name for mark in self.marks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer(Form):
    """A registered importer; what it declares (:class:`Form`) is written as literals in its file.

    recognises: whether a file is for it; cheap (looks at ``Candidate.head`` or names), never raises.
    read_files: the content of ``Candidate.files``. Raises DataError (what, why, how to fix; file and line) for a damaged
    file; facts that two readings are possible of are not guessed: the run's ``missing`` says which.
    """

    recognises: Callable[[Candidate], bool]
    read_files: Callable[[Candidate], Imported]

    def read(self, path: Path, stated: Stated | None = None) -> Imported:
        """All of ``path``; notes name the files of a folder that were left out."""
        imported = self.read_files(Candidate(path, stated or Stated()))
        others = [_name(each, path) for each in imported.left_out if each.reason == OTHER_KIND]
        notes = [
            f"{each.reason if each.path in each.reason else f'{_name(each, path)}: {each.reason}'}; left out"
            for each in imported.left_out
            if each.reason != OTHER_KIND
        ]
        notes = [*notes[:NAMED], *([f"{len(notes) - NAMED} more files left out"] if notes[NAMED:] else [])]
        if others:
            notes.append(f"of another kind and not read: {listed(others, at_most=NAMED)}")
        return replace(imported, notes=(*imported.notes, *notes))


def _name(left_out: LeftOut, folder: Path) -> str:
    return str(Path(left_out.path).relative_to(folder))


T = TypeVar("T")
Knows = Callable[[Candidate], bool]

LOOKED_AT = 200
"""Files of a folder that are opened to find out what it is."""


_TRACES = (".pt.trace.json", ".json.gz", ".sqlite", ".nsys-rep")
_TRACE_KEYS = re.compile(rb'"(?:traceEvents|ph|schemaVersion|deviceProperties)"\s*:')


def holds_traces(candidate: Candidate) -> bool:
    """Whether traces or run folders of ours lie in a folder: then they are what it is for, whatever lies beside them."""
    names = [file.name for file in candidate.files]
    likely = (file for file in candidate.files if file.suffix == ".json")
    return (
        "run.json" in names
        or any(name.endswith(_TRACES) for name in names)
        or any(_TRACE_KEYS.search(Candidate(file).head) for file in islice(likely, LOOKED_AT))
    )


def read_each(
    source: Candidate, knows: Knows, read: Callable[[Path], T], *, suffixes: Container[str]
) -> tuple[list[T], tuple[LeftOut, ...]]:
    """What ``read`` makes of the file, or of every known file of the folder; and the files that were left out.

    A damaged file of a folder is left out with its reason. Raises its DataError where no other file is left.
    """
    if not source.is_folder:
        return [read(source.path)], ()
    found: list[T] = []
    left_out: list[LeftOut] = []
    damaged: list[DataError] = []
    for file in source.files:
        if file.suffix.lower() not in suffixes or not knows(Candidate(file)):
            left_out += [LeftOut(path=str(file), reason=OTHER_KIND)] if not is_about(file) else []
            continue
        try:
            found.append(read(file))
        except DataError as error:
            damaged.append(error)
            left_out.append(LeftOut(path=str(file), reason=error.line))
    if not found:
        raise damaged[0] if damaged else DataError(f"{source.path} holds no file of this format")
    return found, tuple(left_out)

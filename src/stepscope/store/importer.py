"""What an importer is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from stepscope.core.words import listed
from stepscope.records.imported import Imported, LeftOut, Stated
from stepscope.store.files import files_below, head_of

NAMED = 5
"""Files left out that a note names one by one."""

OTHER_KIND = "of another kind"
"""Why a reader leaves a file out that is none of its own."""

MOST_LOOKED_AT = 50
"""Files of a folder that are looked at before it counts as foreign: logs may stand among other output of a job."""

HEAD_BYTES = 64 << 10
"""What a file is told by: enough for the header lines that a launcher puts before the tool's own."""


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
class Importer:
    """A registered importer.

    title: what it reads, in words for `did you mean` and the table of formats (``nccl-tests output``).
    recognises: whether a path is for it; cheap (looks at ``Candidate.head`` or names), never raises.
    read_files: the content of ``Candidate.files``. Raises DataError (what, why, how to fix; file and line) for a damaged
    file; facts that two readings are possible of are not guessed: the run's ``missing`` says which. rank: lower is asked
    first; a specific format goes before a general one.
    """

    title: str
    recognises: Callable[[Candidate], bool]
    read_files: Callable[[Candidate], Imported]
    rank: int = 50

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

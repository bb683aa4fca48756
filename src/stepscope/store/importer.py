"""What an importer is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from stepscope.records.imported import Imported, Stated
from stepscope.store.files import files_below, head_of

HEAD_BYTES = 64 << 10
"""What a file is told by: enough for the header lines that a launcher puts before the tool's own."""


@dataclass(frozen=True)
class Candidate:
    """A path that some importer may know. A folder has no ``head``; look at ``files``. stated: what the user says of it."""

    path: Path
    stated: Stated = field(default_factory=Stated)

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
        return files_below(self.path) if self.is_folder else (self.path,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Importer:
    """A registered importer.

    title: what it reads, in words for `did you mean` and the table of formats (``nccl-tests output``).
    recognises: whether a path is for it; cheap (looks at ``Candidate.head`` or names), never raises.
    read: the path's content. Raises DataError (what, why, how to fix; file and line) for a damaged file; facts that two
    readings are possible of are not guessed: the run's ``missing`` says which. rank: lower is asked first; a specific
    format goes before a general one.
    """

    title: str
    recognises: Callable[[Candidate], bool]
    read: Callable[[Path, Stated], Imported]
    rank: int = 50

"""Formats of which a folder holds several files: which of them are known, and reading them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from itertools import islice
from pathlib import Path
from typing import TypeVar

from stepscope.core.errors import DataError
from stepscope.store.importer import Candidate

T = TypeVar("T")
Knows = Callable[[Candidate], bool]

LOOKED_AT = 200
"""Files of a folder that are opened to find out what it is."""

NAMED = 5
_ABOUT = ("readme", "license", "licence")
"""Files that no one expects to be read."""


def recognises_any(candidate: Candidate, knows: Knows, *, suffixes: Container[str]) -> bool:
    """Whether a file, or any of the first files of a folder, is of the format."""
    if not candidate.is_folder:
        return knows(candidate)
    likely = (file for file in candidate.files if file.suffix.lower() in suffixes)
    return any(knows(Candidate(file)) for file in islice(likely, LOOKED_AT))


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


def is_about(path: Path) -> bool:
    """Whether a file of a folder only describes it."""
    return path.stem.lower() in _ABOUT


def read_each(
    path: Path, knows: Knows, read: Callable[[Path], T], *, suffixes: Container[str]
) -> tuple[list[T], tuple[str, ...]]:
    """What ``read`` makes of the file, or of every known file below the folder; and notes on what was left out.

    A damaged file of a folder is left out with its reason. Raises its DataError where no other file is left.
    """
    if not path.is_dir():
        return [read(path)], ()
    found: list[T] = []
    others: list[str] = []
    damaged: list[DataError] = []
    for file in Candidate(path).files:
        if file.suffix.lower() not in suffixes or not knows(Candidate(file)):
            others += [str(file.relative_to(path))] if not is_about(file) else []
            continue
        try:
            found.append(read(file))
        except DataError as error:
            damaged.append(error)
    if not found:
        raise damaged[0] if damaged else DataError(f"{path} holds no file of this format")
    notes = [f"{error.line}; left out" for error in damaged]
    if others:
        more = f" and {len(others) - NAMED} more" if len(others) > NAMED else ""
        notes.append(f"of another kind and not read: {', '.join(others[:NAMED])}{more}")
    return found, tuple(notes)

"""Formats of which a folder holds several files: which of them are known, and reading them all."""

from __future__ import annotations

import re
from collections.abc import Callable, Container
from itertools import islice
from pathlib import Path
from typing import TypeVar

from stepscope.core.errors import DataError
from stepscope.records.imported import LeftOut
from stepscope.store.files import is_about
from stepscope.store.importer import OTHER_KIND, Candidate

T = TypeVar("T")
Knows = Callable[[Candidate], bool]

LOOKED_AT = 200
"""Files of a folder that are opened to find out what it is."""


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

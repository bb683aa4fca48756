"""NCCL's debug log (NCCL_DEBUG=INFO), one file of a job or a folder with one file a process."""

from __future__ import annotations

import re

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.store.importer import Candidate, Importer
from stepscope.store.nccl_log import read_nccl_debug
from stepscope.store.text_signs import signs_beside

__all__ = ["IMPORTER", "read_nccl_debug"]


_LINE = re.compile(rb"(?:^|[ \n])NCCL (?:INFO|WARN) ")


def _recognises_nccl_lines(candidate: Candidate) -> bool:
    """Return whether NCCL's lines are near the begin, and no table of nccl-tests (which says more and is asked first)."""
    return _LINE.search(candidate.head) is not None


def _import_nccl_log(source: Candidate) -> Imported:
    """Read NCCL's lines and the signs beside them; signs alone where no line of NCCL is whole."""
    signs = signs_beside(source.files)
    try:
        nccl = read_nccl_debug(source.only or source.path)
    except DataError:  # a few settings, and a job's end beside them
        if not signs:
            raise
        return Imported(format="job_text", path=str(source.path), signs=signs)
    return Imported(format="nccl_debug", path=str(source.path), nccl=nccl, signs=signs, notes=nccl.notes)


IMPORTER = Importer(
    title="NCCL_DEBUG log", recognises=_recognises_nccl_lines, read_files=_import_nccl_log, rank=60, marks=("NCCL ",)
)

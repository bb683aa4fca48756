"""Output of ``nvidia-smi topo -m``, pasted with whatever stands around it. Only recognised here: its text is kept, and
``stepscope.machine.topology`` reads the matrix."""

from __future__ import annotations

import re

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported, LeftOut
from stepscope.store.importer import Candidate, Importer
from stepscope.store.reader import read_bytes

MAX_BYTES = 1 << 20
"""Most bytes of a matrix; one of 16 GPUs and 16 NICs has 4 KiB."""

_ROW = re.compile(r"^[ \t\r\x1b\[0-9;m]*GPU\d+[ \t]+(?:X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB)\b", re.MULTILINE)
_LINK = re.compile(r"^[^\n]*GPU\d+[ \t][^\n]*\b(?:NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB)\b", re.MULTILINE)
_PEERS = re.compile(r"^\s*GPU\d+[ \t][^\n]*\b(?:OK|CNS|GNS|TNS)\b", re.MULTILINE)


def _recognises_matrix(candidate: Candidate) -> bool:
    """Return whether there is a row of the matrix: a GPU, and its link to the first device; not of ``topo -p2p``."""
    text = candidate.text
    return _ROW.search(text) is not None and (_LINK.search(text) is not None or _PEERS.search(text) is None)


def _import_matrix(source: Candidate) -> Imported:
    """Read the matrix of the one file; of several in a folder the first, and a line for each other."""
    path, *others = source.files
    data = read_bytes(path)
    if len(data) > MAX_BYTES:
        raise DataError(
            f"{path}: too large for a link matrix",
            why=f"{len(data)} bytes; a matrix has a few thousand",
            fix="cut out the output of nvidia-smi topo -m",
        )
    return Imported(
        format="topology",
        path=str(path),
        topology=data.decode("utf-8", errors="replace"),
        left_out=tuple(
            LeftOut(path=str(other), reason=f"one job has one link matrix, and {path.name} is read") for other in others
        ),
    )


IMPORTER = Importer(
    title="nvidia-smi topo -m", recognises=_recognises_matrix, read_files=_import_matrix, rank=80, marks=("GPU",)
)

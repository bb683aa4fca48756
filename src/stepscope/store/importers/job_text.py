"""The text of a job that nothing else reads: what it says of the job's end, or of what stands in its way."""

from __future__ import annotations

from stepscope.records.imported import Imported, LeftOut
from stepscope.store.importer import OTHER_KIND, Candidate, Importer
from stepscope.store.log_lines import SUFFIXES, parts_read
from stepscope.store.text_signs import signs_beside


def _recognises_text(candidate: Candidate) -> bool:
    return candidate.path.suffix.lower() in SUFFIXES and bool(signs_beside((candidate.path,)))


def _read_signs(source: Candidate) -> Imported:
    """Read the signs of a job's texts; files without one are left out."""
    signs = {path: signs_beside((path,)) for path in source.files}
    return Imported(
        format="job_text",
        path=str(source.path),
        signs=tuple(sign for of_file in signs.values() for sign in of_file),
        notes=parts_read(source.files),
        left_out=tuple(LeftOut(path=str(path), reason=OTHER_KIND) for path, of_file in signs.items() if not of_file),
    )


IMPORTER = Importer(
    title="text of a job that failed or hangs", recognises=_recognises_text, read_files=_read_signs, rank=98
)

"""What lies in a folder that a user names: every file, what it is, and which job it belongs to. Nothing is read yet."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.imported import Stated
from stepscope.store.files import is_about
from stepscope.store.foreign import detect
from stepscope.store.importer import Candidate
from stepscope.store.layout import RunLayout
from stepscope.traces.discover import RANK_FOLDER

MOST_OPENED = 5000
"""Files with one ending that are opened to find out what they are; the rest is counted."""

MOST_FILES = 500_000
"""Files that are counted at all."""

TRACE, RUN, ROWS, CALIBRATION = "trace", "run", "rows", "calibration"
"""Kinds that no importer reads; the others are importers' keys."""

OUR_REPORT = "performance_report.txt"
"""A folder with it is a report of ours: its tables are no measurements of their own."""

OF_A_PROFILE = ("profile.json", "verdict.json")
"""What `profile` writes beside its traces: no measurement by itself."""

_NEVER = (".git", ".hg", ".svn", "__pycache__", "node_modules", "site-packages", ".venv", "venv")

_LINK = "links to folders are not followed: name the folder itself"
_SETTINGS_REASON = "programs and settings: not a measurement"
_DOCUMENTS = "pictures and documents: not a measurement"
_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "weights and arrays: they hold no measurements": (
        ".pt", ".pth", ".ckpt", ".safetensors", ".distcp", ".onnx", ".h5", ".npy", ".npz", ".bin", ".gguf",
    ),
    "data: not a measurement": (
        ".parquet", ".arrow", ".tar", ".tgz", ".zip", ".tfrecord", ".feather", ".jpg", ".jpeg", ".webp", ".wav", ".flac",
        ".mp3", ".mp4", ".idx", ".mdb", ".lmdb",
    ),
    _SETTINGS_REASON: (
        ".py", ".ipynb", ".sh", ".slurm", ".sbatch", ".c", ".cc", ".cpp", ".cu", ".h", ".so", ".o", ".toml", ".cfg",
        ".ini", ".lock", ".patch", ".diff",
    ),
    _DOCUMENTS: (
        ".png", ".svg", ".pdf", ".gif", ".html", ".css", ".js", ".tex", ".rst",
    ),
    "reports of Nsight Systems: write them as SQLite with `nsys export --type sqlite FILE`": (".nsys-rep", ".qdrep"),
}  # fmt: skip
"""Reason -> suffixes of files that are not opened."""

_REASONS = {suffix: reason for reason, suffixes in _SUFFIXES.items() for suffix in suffixes}
SETTINGS = (".yaml", ".yml")
_UNKNOWN = "no format that stepscope reads"

_KIND_NAMES = re.compile(
    r"(torch_?)?(traces?|logs?|dumps?|profiles?|profiler|profiling|nccl(_?(logs?|debug))?|flight(_?recorder)?|fr|"
    r"memory|mem|snapshots?|memory_?snapshots?|results?|metrics|outputs?|plugins|debug)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Files of one kind in one job. kind: ``trace``, ``run``, ... or an importer's key. job: subfolder, "" for the top."""

    kind: str
    job: str
    files: tuple[Path, ...]


@dataclass(kw_only=True)
class Survey:
    """A folder's content. ranks: rank by path, of files that lie in a folder named after their rank.

    unread: reason -> files that no reader is asked for, with their bytes. folders: those that were not looked into.
    """

    items: list[Item] = field(default_factory=list)
    ranks: dict[str, int] = field(default_factory=dict)
    unread: dict[str, list[int]] = field(default_factory=dict)
    folders: list[str] = field(default_factory=list)


def survey(root: Path, stated: Stated) -> Survey:
    """Every file below ``root``. Hidden files, version control, environments and caches are not looked into.

    Raises DataError where ``root`` cannot be listed.
    """
    found = Survey()
    kinds: dict[tuple[str, str], list[Path]] = {}
    settings: list[Path] = []
    opened: Counter[str] = Counter()
    for path in _walk(root, found):
        if path.is_dir():
            kinds.setdefault((RUN, path.relative_to(root).as_posix()), []).append(path)
            continue
        suffix = path.suffix.lower()
        kind: str | None = None
        if suffix in SETTINGS:
            settings.append(path)
            continue
        reason = _DOCUMENTS if is_about(path) else _REASONS.get(suffix, _UNKNOWN)
        if suffix not in _REASONS and not is_about(path):
            opened[suffix] += 1
            if opened[suffix] > MOST_OPENED:
                reason = (
                    f"other files: more than {MOST_OPENED} end in {suffix or 'nothing'}; name the subfolder of the job"
                )
            else:
                kind, reason = _kind_of(path, stated)
        if kind is None:
            _count(found, reason, path)
            continue
        job, rank = job_of(path.relative_to(root))
        if rank is not None:
            found.ranks[str(path)] = rank
        kinds.setdefault((kind, job if kind in JOB_KINDS else ""), []).append(path)
    if ("metrics_csv", "") in kinds:
        kinds["metrics_csv", ""] += settings
    else:
        for path in settings:
            _count(found, _SETTINGS_REASON, path)
    found.items = [Item(kind=kind, job=job, files=tuple(files)) for (kind, job), files in kinds.items()]
    return found


JOB_KINDS = frozenset({TRACE, "flight_recorder", "watchdog_log", "nccl_debug", "memory_snapshot"})
"""Kinds whose files are parts of one job: what lies in the folders of another job is kept apart."""


def job_of(path: Path) -> tuple[str, int | None]:
    """(job, rank) that the folders of a relative path name: ``run2/traces/rank3/a.json`` is of job ``run2``, rank 3.

    Folders named after a kind of file (``traces``, ``logs``) or a rank do not tell jobs apart.
    """
    job: list[str] = []
    rank = None
    for part in path.parts[:-1]:
        if _KIND_NAMES.fullmatch(part):
            continue
        if numbered := RANK_FOLDER.fullmatch(part):
            if numbered[1].lower() in ("rank", "worker"):
                rank = int(numbered[2])
            continue
        job.append(part)
    return "/".join(job), rank


def _walk(root: Path, found: Survey) -> Iterator[Path]:
    """Files in order; a run folder of ours as one."""
    count = 0
    problem: list[OSError] = []
    for place, inner, names in os.walk(root, onerror=problem.append):
        if problem and Path(place) == root:
            break
        keep = []
        for name in sorted(inner):
            folder = Path(place, name)
            if folder.is_symlink() and not name.startswith("."):
                found.unread.setdefault(_LINK, [0, 0])[0] += 1
            elif name in _NEVER or any((folder / mark).is_file() for mark in ("pyvenv.cfg", OUR_REPORT)):
                found.folders.append(folder.relative_to(root).as_posix())
            elif RunLayout(folder).run.is_file():
                yield folder
            elif not name.startswith("."):
                keep.append(name)
        inner[:] = keep
        for name in sorted(names):
            if name.startswith("."):
                continue
            count += 1
            if count > MOST_FILES:
                raise DataError(
                    f"{root} holds more than {MOST_FILES} files",
                    why="it is not a folder of results",
                    fix="pass the folder of one job",
                )
            yield Path(place, name)
    for error in problem:
        if Path(error.filename or "") == root:
            raise DataError(
                f"{root}: cannot be read", why=error.strerror or str(error), fix="check the path and its permissions"
            )
        found.folders.append(f"{Path(error.filename).relative_to(root).as_posix()} ({error.strerror})")


def _kind_of(path: Path, stated: Stated) -> tuple[str | None, str]:
    """(kind, why it has none)."""
    from stepscope.traces.envelope import MERGED
    from stepscope.traces.load import why_no_trace

    try:
        size = path.stat().st_size
        if not path.is_file():
            return None, "devices, pipes and sockets"
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    if size == 0:
        return None, "empty files"
    if (ours := _ours(path)) is not None:
        return ours, ""
    if path.name in OF_A_PROFILE and b'"stepscope.' in Candidate(path).head[:200]:
        return None, _SETTINGS_REASON
    known = detect(path, stated)
    if known is not None:
        return known[0], ""
    try:
        why = why_no_trace(path, HEADER_LIMIT)
        return (TRACE, "") if why is None else (None, f"merged timelines: {why}" if why == MERGED else _UNKNOWN)
    except DataError as error:
        return None, f"{path.name}: {error.why or error.line}"
    except (OSError, ValueError):
        return None, _UNKNOWN


HEADER_LIMIT = 4 << 20
"""How far into a file the events of a trace may begin, where nothing says that it is one."""


def _ours(path: Path) -> str | None:
    """Documents that stepscope wrote outside of a run folder."""
    if path.suffix not in (".json", ".jsonl"):
        return None
    head = Candidate(path).head[:200]
    if b'"stepscope.calib/' in head:
        return CALIBRATION
    rows = (b'"stepscope.result_row/', b'"stepscope.training_run/', b'"stepscope.comm_row/')
    return ROWS if any(mark in head for mark in rows) else None


def _count(found: Survey, reason: str, path: Path) -> None:
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    entry = found.unread.setdefault(reason, [0, 0])
    entry[0] += 1
    entry[1] += size

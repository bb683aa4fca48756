"""A folder of anything: which files lie in it, of which kind and job each is, and the evidence that their readers make of
them; what was left out and why.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path

from stepscope.core.dataclass import dataclass, record
from stepscope.core.errors import DataError, unreadable
from stepscope.core.words import counted, grouped, listed
from stepscope.records.imported import Imported, LeftOut, Stated
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import Evidence, FilesFound, Source, TraceEvidence
from stepscope.results.joining import join
from stepscope.store.importer import OTHER_KIND, Candidate, is_about
from stepscope.store.importers import REGISTRY, declared, detect
from stepscope.store.layout import RunLayout, profiled_job, shown_as
from stepscope.traces.file_names import RANK_FOLDER, is_of_ranks

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

_RAW = "PROF_"
"""How Ascend calls the folders of what its profiler has made a trace of."""

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
    r"memory|mem|snapshots?|memory_?snapshots?|results?|metrics|outputs?|plugins|debug|.*_ascend_(pt|ms)|ascend_profiler_output)",
    re.IGNORECASE,
)


@record
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
    """List every file below ``root``. Hidden files, version control, environments and caches are not looked into.

    Raises DataError where ``root`` cannot be listed.
    """
    content = Survey()
    kinds: dict[tuple[str, str], list[Path]] = {}
    settings: list[Path] = []
    opened: Counter[str] = Counter()
    for path in _walked_files(root, content):
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
                kind, reason = _kind_and_reason(path, stated)
        if kind is None:
            _count_unread(content, reason, path)
            continue
        job, rank = job_of(path.relative_to(root), root)
        if rank is not None:
            content.ranks[str(path)] = rank
        kinds.setdefault((kind, job if kind in JOB_KINDS else ""), []).append(path)
    if ("metrics_csv", "") in kinds:
        kinds["metrics_csv", ""] += settings
    else:
        for path in settings:
            _count_unread(content, _SETTINGS_REASON, path)
    content.items = [Item(kind=kind, job=job, files=tuple(files)) for (kind, job), files in kinds.items()]
    return content


JOB_KINDS = frozenset({TRACE, "flight_recorder", "job_text", "nccl_debug", "nccl_inspector", "memory_snapshot"})
"""Kinds whose files are parts of one job: what lies in the folders of another job is kept apart."""


_ATTEMPT = re.compile(r"attempt_\d{1,4}")
"""A folder of torchrun's logs (--log-dir): its folders are numbers of ranks."""


def job_of(path: Path, root: Path | None = None) -> tuple[str, int | None]:
    """Return (job, rank) as the folders of a relative path name them: ``run2/traces/rank3/a.json`` is of job ``run2``, rank
    3.

    Folders named after a kind of file (``traces``, ``logs``) or a rank do not tell jobs apart; of devices, where ``root``
    holds the first one, too.
    """
    job: list[str] = []
    rank = None
    for folder in reversed(path.parents[:-1]):
        part = folder.name
        if _KIND_NAMES.fullmatch(part):
            continue
        if part.isdecimal() and job and _ATTEMPT.fullmatch(job[-1]):
            rank = int(part)
            continue
        if (numbered := RANK_FOLDER.fullmatch(part)) and is_of_ranks((root or Path()) / folder):
            if numbered[1].lower() in ("rank", "worker"):
                rank = int(numbered[2])
            continue
        job.append(part)
    return "/".join(job), rank


def _walked_files(root: Path, content: Survey) -> Iterator[Path]:
    """Yield files in order; a run folder of ours as one."""
    count = 0
    problem: list[OSError] = []
    for place, inner, names in os.walk(root, onerror=problem.append):
        if problem and Path(place) == root:
            break
        keep = []
        for name in sorted(inner):
            folder = Path(place, name)
            if folder.is_symlink() and not name.startswith("."):
                content.unread.setdefault(_LINK, [0, 0])[0] += 1
            elif (
                name in _NEVER
                or name.startswith(_RAW)
                or any((folder / mark).is_file() for mark in ("pyvenv.cfg", OUR_REPORT))
            ):
                content.folders.append(folder.relative_to(root).as_posix())
            elif RunLayout(folder).is_there:
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
            raise unreadable(root, error)
        content.folders.append(f"{Path(error.filename).relative_to(root).as_posix()} ({error.strerror})")


def _kind_and_reason(path: Path, stated: Stated) -> tuple[str | None, str]:
    """Return (kind, why it has none)."""
    from stepscope.traces.envelope import MERGED
    from stepscope.traces.load import why_no_trace
    from stepscope.traces.other_files import instead_of

    try:
        size = path.stat().st_size
        if not path.is_file():
            return None, "devices, pipes and sockets"
    except OSError as error:
        return None, f"cannot be read: {error.strerror}"
    if size == 0:
        return None, "empty files"
    if (ours := _own_kind(path)) is not None:
        return ours, ""
    if path.name in OF_A_PROFILE and b'"stepscope.' in Candidate(path).head[:200]:
        return None, _SETTINGS_REASON
    try:
        if _TRACED in Candidate(path).head and why_no_trace(path, HEADER_LIMIT) is None:
            return TRACE, ""  # before 90 importers look at it: a third of the time of a small job
    except (DataError, OSError, ValueError):
        pass  # whoever reads it says why
    detected = detect(path, stated)
    if detected is not None:
        return detected[0], ""
    try:
        why = why_no_trace(path, HEADER_LIMIT)
        if why is None:
            return TRACE, ""
        return None, f"merged timelines: {why}" if why == MERGED else why if instead_of(why) is not None else _UNKNOWN
    except DataError as error:
        return None, f"{path.name}: {error.why or error.line}"
    except (OSError, ValueError):
        return None, _UNKNOWN


_TRACED = b'"traceEvents"'

HEADER_LIMIT = 4 << 20
"""How far into a file the events of a trace may begin, where nothing says that it is one."""


def _own_kind(path: Path) -> str | None:
    """Return the kind of a document that stepscope wrote outside of a run folder."""
    if path.suffix not in (".json", ".jsonl"):
        return None
    head = Candidate(path).head[:200]
    if b'"stepscope.calib/' in head:
        return CALIBRATION
    rows = (b'"stepscope.result_row/', b'"stepscope.training_run/', b'"stepscope.comm_row/')
    return ROWS if any(mark in head for mark in rows) else None


def _count_unread(content: Survey, reason: str, path: Path) -> None:
    """Count a file, and its bytes, among those that are not read for this reason."""
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    entry = content.unread.setdefault(reason, [0, 0])
    entry[0] += 1
    entry[1] += size


_ORDER = (
    RUN,
    ROWS,
    TRACE,
    "flight_recorder",
    "job_text",
    "nccl_debug",
    "memory_snapshot",
    "topology",
    CALIBRATION,
)
_TITLES = {
    RUN: "run folder of stepscope",
    ROWS: "results of stepscope",
    CALIBRATION: "calibration of stepscope",
    TRACE: "profiler traces",
}
_ONE_BY_ONE = (RUN, ROWS, CALIBRATION)
_NAMED = 3


@record
class Readers:
    """How each kind is read. load: one path of ours. traces: a job's ranks, by capture. imported: what an importer made."""

    load: Callable[[Path], Evidence]
    traces: Callable[[Sequence[Path], Mapping[str, int], Callable[[Path, DataError], None]], Mapping[str, TraceSummary]]
    trace_notes: Callable[[TraceSummary], tuple[str, ...]]
    imported: Callable[[Path, Imported], Evidence]


def read_folder(root: Path, *, stated: Stated, readers: Readers) -> Evidence:
    """Read everything below ``root`` as one body of evidence; ``files_found`` says of each kind whether it was read, or why
    not.

    Raises DataError where nothing in the folder is read.
    """
    there = survey(root, stated)
    parts: list[Evidence] = []
    names: list[str] = []
    entries: list[FilesFound] = []
    errors: list[DataError] = []
    for item in sorted(
        there.items,
        key=lambda item: (_ORDER.index(item.kind) if item.kind in _ORDER else len(_ORDER), item.kind, item.job),
    ):
        for part in [replace(item, files=(path,)) for path in item.files] if item.kind in _ONE_BY_ONE else [item]:
            try:
                evidence, left_out = _item_evidence(root, part, there, stated, readers)
            except DataError as error:
                errors.append(error)
                entries.append(_files_found(part, part.files, reason=error.why or error.what))
                continue
            parts.append(evidence)
            names.append(part.files[0].relative_to(root).as_posix() if part is not item else f"{item.kind} {item.job}")
            unread = {file.path for file in left_out}
            entries += [_files_found(part, taken)] if (taken := [f for f in part.files if str(f) not in unread]) else []
            entries += _files_left_out(part, left_out)
    for text, (number, size) in sorted(there.unread.items()):
        kind, _, reason = text.partition(": ") if ": " in text else ("other files", "", text)
        entries.append(FilesFound(kind=kind, files=number, bytes=size, left_out=reason))
    if not parts:
        raise errors[0] if len(errors) == 1 and not there.unread else _nothing_read_error(root, entries)
    evidence = join(parts, names=names)
    return replace(
        evidence,
        files_found=(*evidence.files_found, *entries),
        notes=(*evidence.notes, *([f"not opened: {listed(there.folders, at_most=5)}"] if there.folders else [])),
        remarks=(*evidence.remarks, *_jobs_notes(root, there)),
    )


def _item_evidence(
    root: Path, item: Item, there: Survey, stated: Stated, readers: Readers
) -> tuple[Evidence, Sequence[LeftOut]]:
    """Return what one item of a folder holds, and the files of it that are left out."""
    if item.kind in _ONE_BY_ONE:
        return readers.load(item.files[0]), ()
    if item.kind != TRACE:
        got = REGISTRY.load(item.kind).read_files(Candidate(root, stated, item.files))
        return readers.imported(root / item.job, got), got.left_out
    damaged: list[LeftOut] = []
    captures = readers.traces(
        item.files,
        there.ranks,
        lambda path, error: damaged.append(LeftOut(path=str(path), reason=error.why or error.what)),
    )
    place = root / item.job
    named = shown_as(place)
    job = named.resolve().name if named != place or not item.job else item.job
    whole = profiled_job(place) or place.absolute()
    notes = [note for summary in captures.values() for note in readers.trace_notes(summary)]
    remark = f"{job}: {len(captures)} captures of the same ranks, analysed separately: {', '.join(captures)}"
    evidence = Evidence(
        sources=(Source(path=place, kind="trace"),),
        traces=tuple(TraceEvidence(name=name or job, summary=summary, job=whole) for name, summary in captures.items()),
        notes=tuple(dict.fromkeys(notes)),
        remarks=(remark,) if len(captures) > 1 else (),
    )
    return evidence, damaged


def _files_found(item: Item, files: Sequence[Path], *, reason: str | None = None) -> FilesFound:
    """Return the line on files of one kind. reason: why they are left out; None: they are read."""
    return FilesFound(
        kind=_TITLES.get(item.kind) or declared(item.kind).title,
        job=item.job,
        files=len(files),
        bytes=sum(file.stat().st_size for file in files if file.is_file()),
        left_out=reason,
    )


def _files_left_out(item: Item, left_out: Iterable[LeftOut]) -> Iterable[FilesFound]:
    """Yield one line for each reason; files that are damaged each in its own way are named."""
    reasons: dict[str, list[Path]] = defaultdict(list)
    for file in left_out:
        reasons[_why_unknown(item.kind) if file.reason == OTHER_KIND else file.reason].append(Path(file.path))
    for at, (reason, files) in enumerate(reasons.items()):
        if at == _NAMED and len(reasons) > _NAMED + 1:
            rest = [file for more in list(reasons.values())[at:] for file in more]
            yield _files_found(item, rest, reason="damaged in different ways")
            return
        named = reason if len(files) > 1 or files[0].name in reason else f"{files[0].name}: {reason}"
        yield _files_found(item, files, reason=named)


def _why_unknown(kind: str) -> str:
    if kind == "table":
        return "no column that stepscope knows: --columns NAME=MEANING says what one is"
    return "none of its lines is of this format"


def _jobs_notes(root: Path, there: Survey) -> tuple[str, ...]:
    """Say how the files of several jobs, and the captures of one, were told apart."""
    jobs = dict.fromkeys(item.job for item in there.items if item.kind != RUN)
    windows = grouped((job for job in jobs if profiled_job(root / job)), lambda job: (root / job).absolute().parent)
    captures = tuple(
        f"{job.name}: {counted(len(parts), 'capture')} of one job, analysed separately: {listed(parts, at_most=5)}"
        for job, parts in windows.items()
        if len(parts) > 1
    )
    return (*captures, *_apart_note(there, [job for job in jobs if len(windows) > 1 or not profiled_job(root / job)]))


def _apart_note(there: Survey, jobs: Iterable[str]) -> tuple[str, ...]:
    """Note that subfolders hold jobs of their own; nothing where there is one job."""
    named = sorted(job for job in jobs if job)
    if len(named) > 1 or (
        named and any(item.job == "" and item.kind in (TRACE, "flight_recorder") for item in there.items)
    ):
        shown = listed(named, at_most=5)
        return (
            f"{counted(len(named), 'subfolder')} hold jobs of their own ({shown}): their files are kept apart by folder",
        )
    return ()


def _nothing_read_error(root: Path, entries: Sequence[FilesFound]) -> DataError:
    """Return the error of a folder of which nothing is read, with the first reasons."""
    reasons = [f"{counted(entry.files, 'file')}: {entry.left_out}" for entry in entries]
    more = f"; and {len(reasons) - 5} more kinds" if reasons[5:] else ""
    return DataError(
        f"{root}: stepscope reads none of the files in this folder",
        why="; ".join(reasons[:5]) + more if reasons else "the folder holds no files",
        fix="name a run folder, traces, or results of another tool (docs/reference/importers.md)",
    )

"""A folder of anything -> evidence: every kind of file by its reader, a line for each kind, what was left out and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.core.words import counted, grouped, listed
from stepscope.records.imported import Imported, LeftOut, Stated
from stepscope.records.trace_summary import TraceSummary
from stepscope.results.evidence import Evidence, FilesFound, Source, TraceEvidence
from stepscope.results.joining import join
from stepscope.results.survey import CALIBRATION, ROWS, RUN, TRACE, Item, Survey, survey
from stepscope.store.importer import OTHER_KIND, Candidate
from stepscope.store.importers import REGISTRY
from stepscope.store.layout import profiled_job, shown_as

_ORDER = (RUN, ROWS, TRACE, "flight_recorder", "watchdog_log", "nccl_debug", "memory_snapshot", "topology", CALIBRATION)
_TITLES = {
    RUN: "run folder of stepscope",
    ROWS: "results of stepscope",
    CALIBRATION: "calibration of stepscope",
    TRACE: "profiler traces",
}
_ONE_BY_ONE = (RUN, ROWS, CALIBRATION)
_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """How each kind is read. load: one path of ours. traces: a job's ranks, by capture. imported: what an importer made."""

    load: Callable[[Path], Evidence]
    traces: Callable[[Sequence[Path], Mapping[str, int], Callable[[Path, DataError], None]], Mapping[str, TraceSummary]]
    trace_notes: Callable[[TraceSummary], tuple[str, ...]]
    imported: Callable[[Path, Imported], Evidence]


def read_folder(root: Path, *, stated: Stated, readers: Readers) -> Evidence:
    """Everything below ``root`` as one body of evidence; ``files_found`` says of each kind whether it was read, or why not.

    Raises DataError where nothing in the folder is read.
    """
    there = survey(root, stated)
    parts: list[Evidence] = []
    names: list[str] = []
    found: list[FilesFound] = []
    errors: list[DataError] = []
    for item in sorted(there.items, key=lambda item: (_order(item.kind), item.kind, item.job)):
        for part in [replace(item, files=(path,)) for path in item.files] if item.kind in _ONE_BY_ONE else [item]:
            try:
                evidence, left_out = _read(root, part, there, stated, readers)
            except DataError as error:
                errors.append(error)
                found.append(_files(part, part.files, reason=error.why or error.what))
                continue
            parts.append(evidence)
            names.append(part.files[0].relative_to(root).as_posix() if part is not item else f"{item.kind} {item.job}")
            unread = {each.path for each in left_out}
            found += [_files(part, taken)] if (taken := [f for f in part.files if str(f) not in unread]) else []
            found += _left_out(part, left_out)
    for text, (number, size) in sorted(there.unread.items()):
        kind, _, reason = text.partition(": ") if ": " in text else ("other files", "", text)
        found.append(FilesFound(kind=kind, files=number, bytes=size, left_out=reason))
    if not parts:
        raise errors[0] if len(errors) == 1 and not there.unread else _nothing(root, found)
    evidence = join(parts, names=names)
    return replace(
        evidence,
        files_found=(*evidence.files_found, *found),
        notes=(*evidence.notes, *([f"not opened: {listed(there.folders, at_most=5)}"] if there.folders else [])),
        remarks=(*evidence.remarks, *_jobs(root, there)),
    )


def _read(
    root: Path, item: Item, there: Survey, stated: Stated, readers: Readers
) -> tuple[Evidence, Sequence[LeftOut]]:
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


def _order(kind: str) -> int:
    return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)


def _title(kind: str) -> str:
    return _TITLES.get(kind) or REGISTRY.load(kind).title


def _files(item: Item, files: Sequence[Path], *, reason: str | None = None) -> FilesFound:
    return FilesFound(
        kind=_title(item.kind),
        job=item.job,
        files=len(files),
        bytes=sum(file.stat().st_size for file in files if file.is_file()),
        left_out=reason,
    )


def _left_out(item: Item, left_out: Iterable[LeftOut]) -> Iterable[FilesFound]:
    """One line for each reason; files that are damaged each in its own way are named."""
    reasons: dict[str, list[Path]] = defaultdict(list)
    for each in left_out:
        reasons[_unknown(item.kind) if each.reason == OTHER_KIND else each.reason].append(Path(each.path))
    for at, (reason, files) in enumerate(reasons.items()):
        if at == _NAMED and len(reasons) > _NAMED + 1:
            rest = [file for more in list(reasons.values())[at:] for file in more]
            yield _files(item, rest, reason="damaged in different ways")
            return
        named = reason if len(files) > 1 or files[0].name in reason else f"{files[0].name}: {reason}"
        yield _files(item, files, reason=named)


def _unknown(kind: str) -> str:
    if kind == "table":
        return "no column that stepscope knows: --columns NAME=MEANING says what one is"
    return "none of its lines is of this format"


def _jobs(root: Path, there: Survey) -> tuple[str, ...]:
    """How the files of several jobs, and the captures of one, were told apart."""
    jobs = dict.fromkeys(item.job for item in there.items if item.kind != RUN)
    windows = grouped((job for job in jobs if profiled_job(root / job)), lambda job: (root / job).absolute().parent)
    captures = tuple(
        f"{job.name}: {counted(len(parts), 'capture')} of one job, analysed separately: {listed(parts, at_most=5)}"
        for job, parts in windows.items()
        if len(parts) > 1
    )
    return (*captures, *_kept_apart(there, [job for job in jobs if len(windows) > 1 or not profiled_job(root / job)]))


def _kept_apart(there: Survey, jobs: Iterable[str]) -> tuple[str, ...]:
    named = sorted(job for job in jobs if job)
    if len(named) > 1 or (
        named and any(item.job == "" and item.kind in (TRACE, "flight_recorder") for item in there.items)
    ):
        shown = listed(named, at_most=5)
        return (
            f"{counted(len(named), 'subfolder')} hold jobs of their own ({shown}): their files are kept apart by folder",
        )
    return ()


def _nothing(root: Path, found: Sequence[FilesFound]) -> DataError:
    reasons = [f"{counted(each.files, 'file')}: {each.left_out}" for each in found]
    more = f"; and {len(reasons) - 5} more kinds" if reasons[5:] else ""
    return DataError(
        f"{root}: stepscope reads none of the files in this folder",
        why="; ".join(reasons[:5]) + more if reasons else "the folder holds no files",
        fix="name a run folder, traces, or results of another tool (docs/reference/importers.md)",
    )

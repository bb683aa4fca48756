"""Loading traces: files -> TraceSet, one rank per file, each rank once.

One large trace read by several processes: each takes stretches of its text, cut where Kineto ends an event.

Only for what needs no second look: the profiler's own layout, not packed, every event as expected. Whatever else turns
up, the file is read again from its start by one process, which repairs it and says what was wrong.
"""

from __future__ import annotations

import gc
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from stepscope.core.errors import DataError, NoTraceError
from stepscope.core.words import counted, listed, url_of
from stepscope.traces.decode import ColumnBuilder, DecodedPart
from stepscope.traces.discover import REPORTS, candidates, in_rank_folders
from stepscope.traces.envelope import (
    ASCEND,
    MTIA_OTHERS,
    PROFILER_OWN,
    EventStream,
    NotATrace,
    meta_from,
    unread_categories,
)
from stepscope.traces.events import Note, RankTrace, TraceMeta, TraceSet
from stepscope.traces.file_names import NamedRank, ranks_by_name
from stepscope.traces.places import places_of
from stepscope.traces.plausible import plausible
from stepscope.traces.scan import compiled
from stepscope.traces.source import CHUNK_BYTES, KINETO_CUT, SQLITE_MAGIC, ByteSource, is_packed
from stepscope.traces.wire import UNREADABLE

if TYPE_CHECKING:
    from concurrent.futures import Executor


PART_BYTES = 32 << 20
"""Text of one stretch: its columns, about a tenth of that, are what waits to be merged."""
WORTH_BYTES = 64 << 20
"""Smaller files are read sooner by one process: the second one takes 50 ms to come and to hand over."""

_WINDOW = 1 << 20
_EVENT_END, _NEXT_EVENT = 4, 6  # within KINETO_CUT
_WAITING = 2  # stretches a process that are read ahead of what is merged


def cuts(path: Path, *, part_bytes: int = PART_BYTES) -> list[tuple[int, int]]:
    """Return [start, end) of stretches of whole events, first event to nearly the last; empty where it cannot be cut."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if is_packed(file.read(4)):
            return []
        stream = EventStream(ByteSource(path))
        try:
            next(iter(stream), None)
        except NotATrace:
            return []
        if not stream.kineto:
            return []
        begin = stream.offset
        stretches = []
        while begin + part_bytes < size:
            file.seek(begin + part_bytes)
            at = file.read(_WINDOW).find(KINETO_CUT)
            if at < 0:
                break
            end = begin + part_bytes + at
            stretches.append((begin, end + _EVENT_END))
            begin = end + _NEXT_EVENT
        return stretches


def read_parts(
    path: Path,
    builder: ColumnBuilder,
    *,
    device_only: bool,
    processes: int,
    advanced: Callable[[int], None],
    part_bytes: int = PART_BYTES,
) -> tuple[int, int] | None:
    """Add the events of all stretches to the builder, which is empty, and say which bytes they took.

    ``advanced`` is told up to where, stretch by stretch.
    None, with the builder in any state, where one process has to read the file.
    """
    from concurrent.futures.process import BrokenProcessPool

    from stepscope.core.pool import side_by_side

    stretches = cuts(path, part_bytes=part_bytes)
    if len(stretches) < processes:
        return None
    coming, done = deque(stretches), 0
    with side_by_side(processes) as pool:
        waiting = deque(pool.submit(read_part, path, *coming.popleft(), device_only) for _ in range(processes))
        while waiting:
            while coming and len(waiting) < _WAITING * processes:
                waiting.append(pool.submit(read_part, path, *coming.popleft(), device_only))
            try:
                part = waiting.popleft().result()
            except BrokenProcessPool:
                return None
            if part is None:
                pool.shutdown(cancel_futures=True)
                return None
            builder.merge(part)
            done += 1
            advanced(stretches[done - 1][1])
    return stretches[0][0], stretches[-1][1] + 1  # with the comma


def read_part(path: Path, start: int, end: int, device_only: bool) -> DecodedPart | None:
    """Decode the events of one stretch; None where they need a second look. Runs in any process."""
    import gc

    gc.disable()  # as in load_file; this process ends with its work
    builder = ColumnBuilder(path)
    try:
        for block in _event_blocks(path, start, end):
            if device_only:
                if not builder.add_device(block):
                    return None
            else:
                builder.add_clean(block)
    except (OSError, MemoryError, *UNREADABLE):
        return None
    return builder.packed()


def _event_blocks(path: Path, start: int, end: int) -> Iterator[bytes]:
    """Yield whole events at a time, as EventStream does."""
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left, rest = end - start, b""
        while left > 0:
            chunk = file.read(min(CHUNK_BYTES, left))
            if not chunk:
                raise OSError("the file has become shorter")
            left -= len(chunk)
            buffer = rest + chunk
            cut = buffer.rfind(KINETO_CUT) if left else -1
            if left and cut < 0:
                rest = buffer
                continue
            yield buffer[: cut + _EVENT_END] if left else buffer
            rest = buffer[cut + _NEXT_EVENT :]


T = TypeVar("T")

FOLDER_HEADER_LIMIT = 64 << 20
"""How far into a file found in a folder the events may begin; beyond, it is taken for something else."""


def load_traces(
    paths: str | Path | Iterable[str | Path],
    *,
    ranks: Mapping[str, int] | None = None,
    executor: Executor | None = None,
    device_only: bool = False,
    cache: bool = False,
) -> TraceSet:
    """All ranks' traces under ``paths`` (files, folders, globs) as columns.

    ``ranks`` states the rank of files (by path or file name) that do not record one. ``executor`` maps the files
    over its workers, one file each. ``device_only`` reads device events and steps alone where the layout allows
    it (several times faster; enough for budget and overlap). ``cache`` keeps the columns in
    ``$XDG_CACHE_HOME/stepscope/traces`` and takes them from there while the file is unchanged.
    Raises DataError for a file that cannot be read, for two files of one rank and for an unknown rank.
    """
    files, notes = trace_files(paths)
    read = partial(load_file, device_only=device_only, cache=cache)
    loaded = (executor.map if executor else map)(read, files)
    apart = [rank for trace in loaded for rank in ranks_of(trace, alone=len(files) == 1)]
    return TraceSet(ranks=with_ranks(apart, ranks or {}), notes=tuple(notes))


def ranks_of(trace: RankTrace, *, alone: bool) -> tuple[RankTrace, ...]:
    """Return the ranks in one file, mostly one. alone: no other file is of the job."""
    places = places_of(trace.events)
    if not places.several:
        return (trace,)
    from stepscope.traces.split import ranks_in  # few files hold several

    return ranks_in(trace, places, alone=alone and not trace.meta.stepscope)


def load_file(
    path: Path, *, device_only: bool = False, cache: bool = False, processes: int = 1, advanced: Advanced | None = None
) -> RankTrace:
    """One file's trace with the rank it records (NONE_RECORDED if none); a large one by several processes.

    ``advanced`` is told again and again how many of the file's bytes are read. Raises DataError.
    """
    read = partial(_read_trace, path, processes=processes, advanced=advanced or _no_one)
    if cache:
        from stepscope.traces.cache import cached  # hashing is not needed for anything else

        again = partial(load_file, path, device_only=device_only, processes=processes, advanced=advanced)
        return cached(path, again, device_only=device_only)
    if _is_sqlite(path):
        from stepscope.traces.nsys import load_nsys  # sqlite3 is not needed for anything else

        return load_nsys(path)
    collecting = gc.isenabled()
    gc.disable()  # millions of short-lived objects without cycles: collecting them costs half the time
    try:
        trace = read(device_only=device_only)
        if trace.partial and (not trace.events.is_device.any() or not MTIA_OTHERS.isdisjoint(trace.events.names)):
            trace = read(
                device_only=False
            )  # of a CPU job the spans are the answer, and MTIA's kinds need its processes
        return trace
    finally:
        if collecting:
            gc.enable()


def sampled_from(ours: Mapping[str, object]) -> int | None:
    """Return the number of the first step that a window recorded for the shapes of the others, or None without one."""
    profile = ours.get("profile")
    first = profile.get("sampled_from") if isinstance(profile, dict) else None
    return first if isinstance(first, int) else None


NONE_RECORDED = -1
PEEK_BYTES = 64 << 10


Advanced = Callable[[Path, int], None]


def _no_one(path: Path, taken: int) -> None:
    pass


def _read_trace(path: Path, *, device_only: bool, processes: int = 1, advanced: Advanced = _no_one) -> RankTrace:
    """Return the trace of a file, read by several processes where it is large. Raises NoTraceError for a file that is
    none."""
    builder = ColumnBuilder(path)
    hole = None
    device_only = device_only and compiled() is not None
    if processes > 1 and path.is_file() and path.stat().st_size >= WORTH_BYTES:
        progress = partial(advanced, path)
        hole = read_parts(path, builder, device_only=device_only, processes=processes, advanced=progress)
        if hole is None:
            builder = ColumnBuilder(path)
    skipped = 0 if hole is None else hole[1] - hole[0]
    source = ByteSource(path, hole=hole)
    stream = EventStream(source)
    scanned = hole is not None and device_only
    try:
        for block in stream:
            advanced(path, source.taken)
            if device_only and builder.add_device(block):
                scanned = True
            else:
                builder.add(block, offset=stream.offset + skipped)
    except NotATrace as error:
        raise _not_a_trace(path, str(error)) from error
    meta = replace(meta_from(stream.header), processes=builder.process_labels)
    ascend = any(ASCEND in label for label in builder.process_labels.values())
    if unread := {} if ascend else unread_categories(builder.foreign, builder.process_labels):
        meta = replace(meta, unread=unread)
    events = builder.build()
    if ascend:
        from stepscope.traces.ascend import rank_of_folder, with_devices

        events = with_devices(events, builder.process_labels)
        meta = replace(meta, rank=rank_of_folder(path) if meta.rank is None else meta.rank)
    elif any(label.startswith("MTIA") for label in builder.process_labels.values()):
        from stepscope.traces.mtia import waits_left_out

        events = waits_left_out(events, builder.process_labels)
    elif not unread and (foreign := _foreign_content(builder, len(events), meta)):
        raise _not_a_trace(path, foreign)
    if (first := sampled_from(meta.stepscope)) is not None:
        from stepscope.traces.sampled import without_sampled  # of windows that `profile` took alone

        events = without_sampled(events, first)
    from stepscope.traces.marks import with_steps_marked  # what the answer needs, not the reading

    events, quality = plausible(with_steps_marked(events))
    notes = [*source.notes, *stream.notes, *builder.notes()]
    if len(events) == 0:
        notes.append(Note(kind="dropped", text="the file holds no spans"))
    return RankTrace(
        rank=NONE_RECORDED if meta.rank is None else meta.rank,
        path=path,
        size_bytes=path.stat().st_size,
        events=events,
        meta=meta,
        notes=tuple(notes),
        partial=scanned,
        quality=quality,
    )


def _foreign_content(builder: ColumnBuilder, spans: int, meta: TraceMeta) -> str | None:
    """Say of a file in which no span has a category of PyTorch's profiler which it has, and of one without any span what it
    holds; None for any other file."""
    counts: Counter[str] = Counter()
    for (category, _), number in builder.foreign.items():
        counts[category] += number
    if not spans:
        forms = [counted(number, form) for form, number in builder.beside.most_common()]
        if not forms or meta.device_names or meta.rank is not None:
            return None
        return f"it holds no spans, and what PyTorch's profiler does not write: {listed(forms, at_most=3)}"
    if counts.total() < spans or not PROFILER_OWN.isdisjoint(counts):
        return None
    from stepscope.traces.other_files import other_timeline  # only a refusal needs it

    if (title := other_timeline(counts)) is not None:
        return title
    shown = [f"{category or 'no category'} ({counted(number, 'span')})" for category, number in counts.most_common()]
    return f"none of its spans has a category that PyTorch's profiler writes: {listed(shown, at_most=3)}"


def with_ranks(traces: list[RankTrace], stated: Mapping[str, int]) -> tuple[RankTrace, ...]:
    """Give each trace its rank: as stated, as recorded, or from its file name; ascending, never two alike.

    Raises DataError when a rank is unknown among several files, or given twice.
    """

    names = ranks_by_name([trace.path for trace in traces])

    def ranked(trace: RankTrace) -> RankTrace:
        rank, notes = rank_of(trace, stated, names)
        return replace(trace, rank=rank, notes=(*trace.notes, *notes))

    return one_per_rank(map(ranked, traces), rank=lambda t: t.rank, path=lambda t: t.path)


def one_per_rank(items: Iterable[T], *, rank: Callable[[T], int], path: Callable[[T], Path]) -> tuple[T, ...]:
    """Return what was read of each rank's file, ascending by rank. Raises DataError when two are of one rank."""
    by_rank: dict[int, T] = {}
    for item in items:
        earlier = by_rank.setdefault(rank(item), item)
        if earlier is not item:
            raise DataError(
                f"rank {rank(item)} twice: {path(earlier).name} and {path(item).name}",
                why="two files record the same rank; they are two captures, or one of them belongs to another job",
                fix=f"name one of them, or state the rank: --rank-of {path(item).name}=N",
            )
    return tuple(by_rank[r] for r in sorted(by_rank))


def trace_files(paths: str | Path | Iterable[str | Path]) -> tuple[list[Path], list[Note]]:
    """The trace files among ``paths``, and what was skipped. Raises DataError when a named file is none."""
    given = [paths] if isinstance(paths, str | Path) else list(paths)
    files, named = candidates(given)
    kept, notes = _traces_and_notes(files, named)
    if not kept and (inner := [f for path in given if url_of(path) is None for f in in_rank_folders(Path(path))]):
        kept, more = _traces_and_notes(inner, named)
        notes += more
    if not kept:
        from stepscope.traces.discover import how_to_record

        raise DataError(
            f"{', '.join(map(str, given))}: no trace among {counted(len(files), 'file')}",
            why="; ".join(n.text for n in notes[:3]) + (f"; and {len(notes) - 3} more" if len(notes) > 3 else ""),
            fix=how_to_record(),
        )
    return kept, notes


def _traces_and_notes(files: Iterable[Path], named: Collection[Path]) -> tuple[list[Path], list[Note]]:
    """Return the files that are traces, and notes on the others. Raises NoTraceError for one that the user named."""
    kept: list[Path] = []
    notes: list[Note] = []
    for file in files:
        # Behind a URL one look is one request: whoever reads the file says so then.
        here = url_of(file) is None
        why = why_no_trace(file, None if file in named else FOLDER_HEADER_LIMIT) if here else None
        if why is None:
            kept.append(file)
        elif file in named:
            raise _not_a_trace(file, why)
        else:
            notes.append(
                Note(kind="beside" if _ends_as_json(file) else "missing", text=f"{file.name}: not a trace: {why}")
            )
    return kept, notes


def _ends_as_json(file: Path) -> bool:
    """Whether a text file ends as JSON does: one that breaks off may have been a trace."""
    if file.suffix != ".json":
        return True  # what is packed and breaks off is unreadable
    with file.open("rb") as text:
        text.seek(max(0, file.stat().st_size - PEEK_BYTES))
        return text.read().rstrip()[-1:] in (b"}", b"]", b"")


def _is_sqlite(path: Path) -> bool:
    """Judge by name or first bytes: nsys exports are also called .db, .sqlite3 or after the report."""
    if path.suffix == ".sqlite":
        return True
    if not path.is_file():  # of a pipe or a URL nothing may be read twice
        return False
    try:
        with path.open("rb") as file:
            return file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except OSError:
        return False  # whoever reads it next says why


def _not_a_trace(path: Path, why: str) -> DataError:
    from stepscope.traces.other_files import instead_of

    otherwise = "name files written by torch.profiler's export_chrome_trace, or an nsys SQLite export"
    return NoTraceError(f"{path}: not a PyTorch profiler trace", why=why, fix=instead_of(why) or otherwise)


def why_no_trace(path: Path, header_limit: int | None) -> str | None:
    """Say by its beginning alone why a file is no rank's trace; None: it is one. Raises DataError where it is unreadable."""
    if path.suffix in REPORTS or _is_sqlite(path):
        return None
    stream = EventStream(ByteSource(path, chunk_bytes=PEEK_BYTES), header_limit=header_limit)
    try:
        next(iter(stream), None)
    except NotATrace as error:
        return str(error)
    return None


def rank_of(
    trace: RankTrace, stated: Mapping[str, int], names: Mapping[str, NamedRank]
) -> tuple[int, tuple[Note, ...]]:
    """Return the rank as stated, as recorded, or as the names of all files tell it; rank 0 for a single file without one.

    Raises DataError when one of several files tells nothing.
    """
    for key in (str(trace.path), trace.path.name):
        if key in stated:
            return stated[key], ()
    named = names[str(trace.path)]
    if trace.rank != NONE_RECORDED:
        if named.sure and named.rank != trace.rank:
            text = f"the file records rank {trace.rank}, its name says {named.rank}; {trace.rank} is used"
            return trace.rank, (Note(kind="assumed", text=text),)
        return trace.rank, ()
    if named.rank is not None:
        return named.rank, (Note(kind="assumed", text=f"no rank recorded; rank {named.rank} is {named.how}"),)
    if len(names) == 1:
        return 0, (Note(kind="assumed", text="no rank recorded; taken as rank 0"),)
    raise DataError(
        f"{trace.path}: its rank is unknown",
        why="neither the file (distributedInfo) nor its name states it",
        fix=f"state it: --rank-of {trace.path.name}=N, or rename the file to rank-N...json",
    )

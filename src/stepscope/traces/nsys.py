"""Nsight Systems' SQLite exports (``nsys export --type sqlite``) through the same columns as a profiler's JSON.

Which tables and columns an export has depends on the version and on what was traced; what is absent is told.

Nsight Systems' own reports (.nsys-rep): only nsys reads them; its SQLite export is what stepscope reads.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, MissingError, unreadable
from stepscope.records.trace_quality import QualityFact
from stepscope.traces.events import DEVICE, NONE, Category, Events, Ints, Note, RankTrace, TraceMeta
from stepscope.traces.plausible import plausible
from stepscope.traces.source import SQLITE_MAGIC

ROWS_AT_ONCE = 1 << 16

_COPIES = (
    "?", "HtoD", "DtoH", "HtoA", "AtoH", "AtoA", "AtoD", "DtoA", "DtoD", "HtoH", "PtoP",
    "HtoD (Unified)", "DtoH (Unified)", "DtoD (Unified)",
)  # fmt: skip
_MEMORY = ("Pageable", "Pinned", "Device", "Array", "Managed", "Device Static", "Managed Static", "Unknown")
_UNSET = str(2**32 - 1)
_API_VERSION = re.compile(r"_v\d+$")
_TORCH_RANGE = re.compile(r"^([^,]+), (?:seq|op_id|sizes)\b.*?")
_SEQUENCE = re.compile(r"\bseq = (\d+)")


@record
class _Table:
    """A table of spans and the columns wanted of it, each with what stands in for it where it does not exist.

    ``name``: SQL of the label, a StringIds id or text; ``what``: what its rows are, for the notes.
    """

    table: str
    what: str
    category: Category
    name: str
    name_is_id: bool
    on_device: bool
    optional: bool = False  # so seldom traced that its absence is not worth a word


_TABLES = (
    _Table(table="CUPTI_ACTIVITY_KIND_KERNEL", what="kernels", category=Category.KERNEL,
           name="demangledName", name_is_id=True, on_device=True),
    _Table(table="CUPTI_ACTIVITY_KIND_GRAPH_TRACE", what="CUDA graphs", category=Category.KERNEL,
           name="'CUDA graph ' || graphId", name_is_id=False, on_device=True, optional=True),
    _Table(table="CUPTI_ACTIVITY_KIND_MEMCPY", what="memory copies", category=Category.MEMCPY,
           name="copyKind || ' ' || COALESCE(srcKind, 7) || ' ' || COALESCE(dstKind, 7)", name_is_id=False,
           on_device=True),
    _Table(table="CUPTI_ACTIVITY_KIND_MEMSET", what="memory sets", category=Category.MEMSET,
           name="memKind", name_is_id=False, on_device=True),
    _Table(table="CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", what="synchronisations", category=Category.SYNC,
        # The number in syncType means different things in different versions; what was waited for does not.
        name=f"COALESCE(streamId, {_UNSET}) || ' ' || COALESCE(eventId, {_UNSET})",
        name_is_id=False,
        on_device=True),
    _Table(table="CUPTI_ACTIVITY_KIND_RUNTIME", what="CUDA calls", category=Category.RUNTIME,
           name="nameId", name_is_id=True, on_device=False),
    _Table(table="NVTX_EVENTS", what="NVTX ranges", category=Category.USER_ANNOTATION,
           name="text", name_is_id=False, on_device=False),
    _Table(table="OSRT_API", what="system calls", category=Category.OTHER,
           name="nameId", name_is_id=True, on_device=False, optional=True),
    _Table(table="PROFILER_OVERHEAD", what="profiler overhead", category=Category.OVERHEAD,
           name="nameId", name_is_id=True, on_device=False, optional=True),
)  # fmt: skip

_FACTS = ("TARGET_INFO_GPU", "TARGET_INFO_SYSTEM_ENV", "TARGET_INFO_SESSION_START_TIME")
_MOST = 1 << 60
"""Times in ns and sizes are below (36 years): what is not is damage, and sums of it would overflow."""


def load_nsys(path: Path) -> RankTrace:
    """The spans of one nsys SQLite export; its rank is NONE, nsys records none.

    Times are ns since the capture's start; ``meta.base_time_ns`` is that start since 1970 where recorded.
    Raises DataError for a file that is no such export, cannot be read, or holds the GPU work of several processes.
    """
    try:
        with path.open("rb") as file:
            head = file.read(len(SQLITE_MAGIC))
    except OSError as error:
        raise unreadable(path, error) from error
    if head != SQLITE_MAGIC:
        raise _not_an_export(path, "it is empty" if not head else "it is not an SQLite database")
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro&immutable=1", uri=True)) as database:
            return _Export(database, path).read()
    except sqlite3.Error as error:
        raise DataError(
            f"{path}: this SQLite database cannot be read",
            why=str(error),
            fix="export the report again: nsys export --type sqlite REPORT.nsys-rep",
        ) from error


class _Export:
    """One opened export, its rows collected as columns."""

    def __init__(self, database: sqlite3.Connection, path: Path) -> None:
        self.database = database
        self.path = path
        database.text_factory = lambda raw: raw.decode(errors="replace")
        wanted = {"StringIds", *_FACTS, *(t.table for t in _TABLES)}
        kinds = {name: kind for name, kind in self._rows("SELECT name, type FROM sqlite_master") if name in wanted}
        views = [name for name, kind in kinds.items() if kind == "view"]
        if views:
            why = f"{', '.join(views)}: a view, which could run any query; nsys writes tables"
            raise _not_an_export(path, why)
        self.columns = {t: [r[1] for r in self._rows(f'PRAGMA table_info("{t}")')] for t in kinds}
        self.names: dict[str, int] = {}
        self.threads: dict[tuple[str, str], int] = {}
        self.parts: dict[str, list[NDArray[Any]]] = {}
        self.copied: dict[int, int] = {}
        self.count = 0
        self.unusable = 0
        self.no_numbers = 0
        self.notes: list[Note] = []

    def read(self) -> RankTrace:
        """Return the trace that the export holds. Raises DataError for a file that is none, or of several processes."""
        present = [t for t in _TABLES if t.table in self.columns]
        if not present or "StringIds" not in self.columns:
            raise _not_an_export(self.path, "it has none of the tables that nsys exports")
        self._check_processes()
        absent = [f"{t.what} ({t.table})" for t in _TABLES if t not in present and not t.optional]
        if absent:
            self.notes.append(Note(kind="assumed", text=f"the export holds no {', no '.join(absent)}"))
        for table in present:
            self._read_table(table)
        if self.unusable:
            text = f"{self.unusable:,} events without an end, or that end before they start (left out)"
            self.notes.append(Note(kind="dropped", text=text))
        if self.no_numbers:
            text = f"{self.no_numbers:,} damaged events whose times or ids are not whole numbers in range (left out)"
            self.notes.append(Note(kind="dropped", text=text))
        if self.count == 0:
            self.notes.append(Note(kind="dropped", text="the file holds no spans"))
        events, quality = plausible(self._events())
        if not events.is_device.any():
            quality = (*quality, QualityFact(kind="not-exported"))
        return RankTrace(
            rank=NONE,
            path=self.path,
            size_bytes=self.path.stat().st_size,
            events=events,
            meta=self._meta(),
            quality=quality,
            notes=tuple(self.notes),
        )

    def _check_processes(self) -> None:
        """Raise DataError where the GPU work is of several processes."""
        processes: set[int] = set()
        for table in (t for t in _TABLES if t.category in DEVICE):
            if "globalPid" in self.columns.get(table.table, ()):
                rows = self._rows(f"SELECT DISTINCT globalPid FROM {table.table}")
                processes.update(p for (p,) in rows if isinstance(p, int))
        if len(processes) > 1:
            raise DataError(
                f"{self.path}: holds the GPU work of {len(processes)} processes",
                why="stepscope needs one file per rank, and an export does not record which process is which rank",
                fix="profile every rank into its own report: nsys profile -o report-rank%q{RANK} ...",
            )

    def _read_table(self, table: _Table) -> None:
        """Add the rows of one table; columns that it lacks are unset."""
        columns = self.columns[table.table]
        missing = {"start", "end"}.difference(columns)
        if missing:
            self.notes.append(Note(kind="skipped", text=f"{table.table} has no column {', '.join(sorted(missing))}"))
            return

        def column(name: str, otherwise: str = str(NONE)) -> str:
            return f"COALESCE({name}, {otherwise})" if name in columns else otherwise

        label = self._label(table, columns)
        place = ("deviceId", "streamId") if table.on_device else ("globalTid", "globalTid")
        size = column("bytes") if table.category in (Category.MEMCPY, Category.MEMSET) else str(NONE)
        driver = column("eventClass", "0") if table.category is Category.RUNTIME else "0"
        query = (
            f'SELECT start, COALESCE("end", -1), {column(place[0])}, {column(place[1])}, '
            f"{column('correlationId')}, {size}, {driver}, {label} FROM {table.table}"
        )
        if table.table == "NVTX_EVENTS":
            query += ' WHERE "end" IS NOT NULL'  # marks, names of domains and categories
        for rows in self._chunks(query):
            self._add(table, rows)
        if table.optional and table.on_device and self.count:
            text = "CUDA graphs were recorded whole: each counts as one compute kernel"
            self.notes.append(Note(kind="assumed", text=text))

    def _label(self, table: _Table, columns: Sequence[str]) -> str:
        """Return the SQL of an event's name, from the columns that the table has."""
        if table.table == "NVTX_EVENTS":
            return f"COALESCE({', '.join([*(c for c in ('text', 'textId') if c in columns), repr(''), repr('')])})"
        needed = re.findall(r"[A-Za-z]*(?:Kind|Name|Id|Type)\b", table.name)
        if table.name_is_id and table.name not in columns:
            return next((c for c in ("shortName", "mangledName") if c in columns), str(NONE))
        return table.name if all(n in columns for n in needed) else str(NONE)

    def _add(self, table: _Table, rows: list[tuple[Any, ...]]) -> None:
        """Add rows to the columns; those without an end, or with numbers out of range, are counted and left out."""
        whole = [r for r in rows if _all_whole(r[:7]) and max(map(abs, (r[0], r[1], r[5]))) < _MOST]
        self.no_numbers += len(rows) - len(whole)
        rows, labels = whole, [r[7] for r in whole]
        numbers = np.array([r[:7] for r in rows], dtype=np.int64).reshape(-1, 7)
        good = numbers[:, 1] >= numbers[:, 0]
        self.unusable += int((~good).sum())
        if not good.all():
            labels = [label for label, kept in zip(labels, good.tolist(), strict=True) if kept]
            numbers = numbers[good]
        start, end, place, thread, correlation, size, event_class = numbers.T
        texts = self._texts(table, labels)
        category = np.full(len(start), table.category, dtype=np.int8)
        sequence = np.full(len(start), NONE, dtype=np.int64)
        if table.category is Category.RUNTIME:
            category[event_class == 1] = Category.DRIVER
        if table.table == "NVTX_EVENTS":
            for i, text in enumerate(texts):
                if match := _TORCH_RANGE.match(text):  # torch.autograd.profiler.emit_nvtx
                    category[i] = Category.CPU_OP
                    number = _SEQUENCE.search(text)
                    sequence[i] = int(number[1]) if number else NONE
                    texts[i] = match[1]
        names = self.names
        columns = {
            "ts_ns": start,
            "dur_ns": end - start,
            "category": category,
            "name": np.array([names.setdefault(t, len(names)) for t in texts], dtype=np.int32),
            "thread": self._threads(place, thread, on_device=table.on_device),
            "stream": _as_int32(thread if table.on_device else np.full(len(start), NONE)),
            "device": _as_int32(place if table.on_device else np.full(len(start), NONE)),
            "correlation": np.where(correlation > 0, correlation, NONE),  # 0: not launched by a call
            "sequence": sequence,
        }
        for key, values in columns.items():
            self.parts.setdefault(key, []).append(values)
        for i in np.flatnonzero(size >= 0).tolist():
            self.copied[self.count + i] = int(size[i])
        self.count += len(start)

    def _texts(self, table: _Table, labels: list[Any]) -> list[str]:
        """Return the names of events: strings of the export, or made of a copy's kind."""
        if table.name_is_id or table.table == "NVTX_EVENTS":
            strings = self._strings({x for x in labels if isinstance(x, int)})
            if table.table == "NVTX_EVENTS":
                return [strings.get(x, "") if isinstance(x, int) else str(x) for x in labels]
            cleaned = {i: _API_VERSION.sub("", text) for i, text in strings.items()}
            return [cleaned.get(x, "?") for x in labels]
        if table.category is Category.MEMCPY:
            return [_copy_name(x) for x in labels]
        if table.category is Category.MEMSET:
            return [f"Memset ({_table_text(_MEMORY, x, 'Unknown')})" for x in labels]
        if table.category is Category.SYNC:
            return [_sync_name(x) for x in labels]
        return [str(x) for x in labels]

    def _strings(self, ids: set[int]) -> dict[int, str]:
        """Return id -> text, of the export's strings."""
        wanted = sorted(ids)
        strings: dict[int, Any] = {}
        for i in range(0, len(wanted), 500):
            some = wanted[i : i + 500]
            marks = ", ".join("?" * len(some))
            strings.update(self._rows(f"SELECT id, value FROM StringIds WHERE id IN ({marks})", some))
        return {i: "" if text is None else str(text) for i, text in strings.items()}

    def _threads(self, place: Ints, thread: Ints, *, on_device: bool) -> NDArray[np.int32]:
        """Return the number of each event's thread; on a device a thread is a stream."""
        pairs, codes = np.unique(np.stack([place, thread], axis=1), axis=0, return_inverse=True)
        table = []
        for first, second in pairs.tolist():
            # A global thread id: 24 bits of the process, then 24 of the thread.
            key = (str(first), str(second)) if on_device else _process_and_thread(first)
            table.append(self.threads.setdefault(key, len(self.threads)))
        return np.array(table, dtype=np.int32)[codes.reshape(-1)]

    def _events(self) -> Events:
        """Return all columns as events, unset where nsys records nothing."""

        def column(key: str, dtype: Any) -> Any:
            parts = self.parts.get(key)
            return np.concatenate(parts).astype(dtype) if parts else np.empty(0, dtype=dtype)

        nothing = np.full(self.count, NONE, dtype=np.int32)
        return Events(
            ts_ns=column("ts_ns", np.int64), dur_ns=column("dur_ns", np.int64),
            category=column("category", np.int8), name=column("name", np.int32),
            thread=column("thread", np.int32), stream=column("stream", np.int32),
            device=column("device", np.int32), correlation=column("correlation", np.int64),
            external_id=nothing.astype(np.int64), sequence=column("sequence", np.int64),
            forward_thread=nothing, shape=nothing.copy(), names=tuple(self.names),
            threads=tuple(self.threads), copied_bytes=self.copied,
        )  # fmt: skip

    def _meta(self) -> TraceMeta:
        """Return host, GPUs and the start of the session, as far as the export has them."""
        gpus = self._optional("TARGET_INFO_GPU", "SELECT name, totalMemory FROM TARGET_INFO_GPU ORDER BY id")
        host = self._optional(
            "TARGET_INFO_SYSTEM_ENV", "SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname'"
        )
        start = self._optional(
            "TARGET_INFO_SESSION_START_TIME", "SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME"
        )
        return TraceMeta(
            host=str(host[0][0]) if host else None,
            device_names=tuple(str(g[0]) for g in gpus),
            device_memory_bytes=gpus[0][1] if gpus and _all_whole(gpus[0][1:]) else None,
            base_time_ns=start[0][0] if start and _all_whole(start[0]) else None,
        )

    def _optional(self, table: str, query: str) -> list[tuple[Any, ...]]:
        """The rows, none when this version of nsys has no such table or column."""
        if table not in self.columns:
            return []
        try:
            return self._rows(query)
        except sqlite3.OperationalError:
            return []

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.database.execute(query, values).fetchall()

    def _chunks(self, query: str) -> Iterator[list[tuple[Any, ...]]]:
        cursor = self.database.execute(query)
        while rows := cursor.fetchmany(ROWS_AT_ONCE):
            yield rows


def _not_an_export(path: Path, why: str) -> DataError:
    return DataError(
        f"{path}: not an Nsight Systems export",
        why=why,
        fix="export the report: nsys export --type sqlite REPORT.nsys-rep",
    )


def _all_whole(values: Sequence[Any]) -> bool:
    """Whether all are whole numbers: SQLite keeps any type in any column."""
    return all(type(value) is int for value in values)


def _process_and_thread(global_id: int) -> tuple[str, str]:
    return str(global_id >> 24 & 0xFFFFFF), str(global_id & 0xFFFFFF)


def _as_int32(values: Ints) -> NDArray[np.int32]:
    """Convert to int32, with NONE for what is unset (2**32 - 1) or absent."""
    return np.where((values < 0) | (values > 2**31 - 1), NONE, values).astype(np.int32)


def _copy_name(label: Any) -> str:
    """Name a copy as Kineto writes it: ``Memcpy HtoD (Pinned -> Device)``."""
    kinds = [int(x) for x in str(label).split() if x.isdecimal()]
    if len(kinds) != 3:
        return "Memcpy ?"
    copy = _table_text(_COPIES, kinds[0], "?")
    if "Unified" in copy:
        return f"Memcpy {copy}"
    return f"Memcpy {copy} ({_table_text(_MEMORY, kinds[1], 'Unknown')} -> {_table_text(_MEMORY, kinds[2], 'Unknown')})"


def _sync_name(label: Any) -> str:
    """Name a wait as Kineto writes it, by what was waited for and by whom."""
    stream, _, event = str(label).partition(" ")
    if not event:
        return "Synchronization"
    if event != _UNSET:
        return "Event Sync" if stream == _UNSET else "Stream Wait Event"
    return "Context Sync" if stream == _UNSET else "Stream Sync"


def _table_text(table: Sequence[str], code: Any, otherwise: str) -> str:
    return table[code] if isinstance(code, int) and 0 <= code < len(table) else otherwise


def exported(report: Path) -> Path:
    """The SQLite export beside ``report``: the one that is there and as new, else the one that the installed nsys makes.

    Raises MissingError with the command to run where nsys is not installed, DataError where it fails.
    """
    export = report.with_suffix(".sqlite")
    try:
        if export.stat().st_mtime >= report.stat().st_mtime:
            return export
    except FileNotFoundError:
        pass
    line = ["nsys", "export", "--type", "sqlite", "--force-overwrite", "true", "--output", str(export), str(report)]
    if shutil.which("nsys") is None:
        raise MissingError(
            f"{report}: only nsys reads this file",
            why="nsys is not installed, or not on PATH",
            fix="run this where nsys is installed, and pass the result: "
            f"{shlex.join(['nsys', *line[1:4], '--output', *line[-2:]])}",
        )
    done = subprocess.run(line, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0 or not export.is_file():
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise DataError(
            f"{report}: nsys could not export it",
            why=lines[-1] if lines else f"exit code {done.returncode}",
            fix=f"run it by hand: {shlex.join(line)}",
        )
    return export

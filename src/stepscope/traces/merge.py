"""All ranks' traces in one file for a trace viewer, on one clock, block by block: never a whole file in memory."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from stepscope.core.errors import DataError, NoTraceError, UsageError
from stepscope.records.trace_collectives import ClockAlignment, ClockFit
from stepscope.records.trace_summary import MergedRank, MergedTrace
from stepscope.store.writer import make_dir, write_error
from stepscope.traces.alignment import corrected
from stepscope.traces.envelope import MERGED_KEY, EventStream, NotATrace
from stepscope.traces.source import ByteSource, repaired
from stepscope.traces.wire import from_texts

PIDS_PER_RANK = 10_000
"""Processes of rank r are numbered from r * 10,000 on."""

_EVENTS = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ARG_IDS = ("correlation", "External id", "external id")
_EVENT_IDS = ("id", "bind_id")
_NOTHING = b""
_LEVEL = 2


def merge_traces(files: Mapping[int, Path], output: Path, *, clocks: ClockAlignment | None = None) -> MergedTrace:
    """Write all ranks (rank -> trace file) into one Chrome-format file; ``.json.gz`` or ``.json``.

    Every rank's processes get numbers and names of their own ("rank 3: python"); its correlation, External and
    flow ids are made different from other ranks'. Starts are moved onto the reference rank's clock where
    ``clocks`` corrects them, in whole ns of the decimal text; everything else keeps its text. The file appears
    whole or not at all. Raises DataError for a file that is no trace, UsageError for an output that cannot be.
    """
    if not files:
        raise UsageError("nothing to merge", why="no trace files were given", fix="name the ranks' traces")
    if not output.name.endswith((".json", ".json.gz")):
        raise UsageError(
            f"cannot merge into {output.name}",
            why="viewers recognise a trace by its name",
            fix=f"name it {output.name}.json.gz",
        )
    for file in files.values():
        if output.exists() and file.exists() and output.samefile(file):
            raise UsageError(
                f"{output} is one of the traces to merge",
                why="stepscope cannot overwrite it while reading it",
                fix="choose another name for the output",
            )
    fits = {f.rank: f for f in clocks.fits} if clocks else {}
    order = sorted(files)
    parts, notes = [], []
    with _open_output(output) as out:
        out.write(_merged_header(order, clocks))
        first = True
        for slot, rank in enumerate(order):
            merger = _RankMerger(rank, slot, len(order), fits.get(rank))
            for text in merger.events(files[rank]):
                out.write(text if not first else text[1:])
                first = False
            parts.append(merger.part())
            notes += [f"rank {rank}: {note}" for note in merger.notes]
        out.write(b"\n  ]\n}\n")
    return MergedTrace(path=str(output), size_bytes=output.stat().st_size, ranks=tuple(parts), notes=tuple(notes))


class _RankMerger:
    """Rewrites the events of one rank. Each yielded text begins with the comma that separates it from the last."""

    def __init__(self, rank: int, slot: int, slots: int, fit: ClockFit | None) -> None:
        self.rank = rank
        self.notes: list[str] = []
        self._slot, self._slots = slot, slots
        self._fit = fit if fit is not None and fit.status == "corrected" else None
        self._pids: dict[bytes, int] = {}
        self._named: set[int] = set()
        self._moved: int | None = None
        self._count = 0

    def events(self, path: Path) -> Iterator[bytes]:
        """Yield a rank's events as text, with the names of its processes at the end. Raises NoTraceError for a file that
        is none."""
        source = ByteSource(path)
        stream = EventStream(source)
        try:
            for block in stream:
                yield from self._rewritten(_decoded_events(block, path, stream.offset))
        except NotATrace as error:
            raise NoTraceError(
                f"{path}: not a PyTorch profiler trace",
                why=str(error),
                fix="name files written by torch.profiler's export_chrome_trace",
            ) from error
        self.notes += [n.text for n in (*source.notes, *stream.notes)]
        for original, pid in self._pids.items():
            if pid not in self._named:
                yield self._metadata(pid, "process_name", {"name": self._label(_raw_text(original))})
            yield self._metadata(pid, "process_sort_index", {"sort_index": pid})

    def part(self) -> MergedRank:
        """Return what the merged file holds of this rank."""
        return MergedRank(
            rank=self.rank,
            event_count=self._count,
            moved_ns=self._moved or 0,
            first_pid=self.rank * PIDS_PER_RANK,
            processes=len(self._pids),
        )

    def _rewritten(self, events: list[dict[str, msgspec.Raw]]) -> Iterator[bytes]:
        """Yield events with processes, times and ids of their own in the merged file."""
        texts = []
        for event in events:
            fields = cast("dict[str, Any]", event)
            metadata = bytes(fields.get("ph", _NOTHING)) == b'"M"'
            if metadata and bytes(fields.get("name", _NOTHING)) == b'"process_sort_index"':
                continue
            if "pid" in fields:
                pid = self._pid(bytes(fields["pid"]))
                fields["pid"] = b"%d" % pid
                if metadata and bytes(fields.get("name", _NOTHING)) == b'"process_name"' and "args" in fields:
                    self._named.add(pid)
                    fields["args"] = self._process_label(bytes(fields["args"]))
            if self._fit is not None and "ts" in fields and not metadata:
                fields["ts"] = self._moved_text(self._fit, bytes(fields["ts"]))
            for key in _EVENT_IDS:
                if key in fields:
                    fields[key] = self._own_id(bytes(fields[key]))
            if "args" in fields:
                args = bytes(fields["args"])
                if b'"correlation"' in args or b'ternal id"' in args:
                    fields["args"] = self._own_args(args)
            texts.append(b",\n  {\n    " + _joined_fields(fields) + b"\n  }")
        self._count += len(texts)
        if texts:
            yield b"".join(texts)

    def _pid(self, original: bytes) -> int:
        """Return the number of a process in the merged file. Raises DataError for too many processes."""
        if original not in self._pids:
            if len(self._pids) == PIDS_PER_RANK:
                raise DataError(
                    f"rank {self.rank} has more than {PIDS_PER_RANK:,} processes",
                    why="no profiler writes that many; the file is damaged",
                    fix="leave this rank out",
                )
            self._pids[original] = self.rank * PIDS_PER_RANK + len(self._pids)
        return self._pids[original]

    def _label(self, name: str) -> str:
        return f"rank {self.rank}: {name}" if name.strip() else f"rank {self.rank}"

    def _process_label(self, args: bytes) -> bytes:
        """Return the arguments that name a process, with its rank in the name."""
        try:
            inner = _OBJECT.decode(args)
        except msgspec.DecodeError:
            return args
        changed = cast("dict[str, Any]", inner)
        changed["name"] = msgspec.json.encode(self._label(_raw_text(bytes(changed.get("name", b'""')))))
        return b"{" + _joined_fields(changed) + b"}"

    def _metadata(self, pid: int, name: str, args: dict[str, object]) -> bytes:
        event = {"ph": "M", "name": name, "pid": pid, "tid": 0, "ts": 0, "args": args}
        fields = {key: msgspec.json.encode(value) for key, value in event.items()}
        return b",\n  {\n    " + _joined_fields(fields) + b"\n  }"

    def _moved_text(self, fit: ClockFit, text: bytes) -> bytes:
        """Return a time, in microseconds, on the common clock; one that cannot be read stays as it is."""
        try:
            time_ns = int(from_texts([text])[0])
        except ValueError:
            return text
        moved = corrected(fit, time_ns)
        if self._moved is None:
            self._moved = moved - time_ns
        whole, rest = divmod(abs(moved), 1000)
        return b"%s%d.%03d" % (b"-" if moved < 0 else b"", whole, rest)

    def _own_args(self, args: bytes) -> bytes:
        """Return arguments with ids of this rank alone; 0 means none and stays."""
        try:
            fields = cast("dict[str, Any]", _OBJECT.decode(args))
        except msgspec.DecodeError:
            return args
        for key in _ARG_IDS:
            if key in fields:
                text = bytes(fields[key])
                if text not in (b"0", b'"0"'):  # 0 links nothing, on any rank
                    fields[key] = self._own_id(text)
        return b"{" + _joined_fields(fields) + b"}"

    def _own_id(self, text: bytes) -> bytes:
        """Whole numbers interleave (id * ranks + place of the rank), so that none needs a limit; others get a
        prefix. Negative ones mean that there is no id."""
        if text.isdigit():
            return b"%d" % (int(text) * self._slots + self._slot)
        if text.startswith(b'"'):
            return msgspec.json.encode(f"{self.rank}:{_raw_text(text)}")
        return text


def _decoded_events(block: bytes, path: Path, offset: int) -> list[dict[str, msgspec.Raw]]:
    """Return the events of a block, repaired where needed. Raises DataError where that fails."""
    for mend in (False, True):
        try:
            return _EVENTS.decode(b"[" + (repaired(block).text if mend else block) + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue
    raise DataError(
        f"{path}: not valid JSON near byte {offset:,} of its text",
        why="an event there is damaged and cannot be repaired",
        fix="export the trace again, or leave this rank out",
    )


def _joined_fields(fields: Mapping[str, Any]) -> bytes:
    """Join fields in Kineto's own spelling, which readers recognise."""
    return b", ".join([_KEYS[key] + text for key, text in fields.items()])


class _Keys(dict[str, bytes]):
    """Key -> its JSON text and the colon; remembers a bounded number."""

    def __missing__(self, key: str) -> bytes:
        text = msgspec.json.encode(key) + b": "
        if len(self) < 1000:
            self[key] = text
        return text


_KEYS = _Keys()


def _raw_text(raw: bytes) -> str:
    if raw.startswith(b'"'):
        return str(msgspec.json.decode(raw))
    return raw.decode(errors="replace")


def _merged_header(ranks: list[int], clocks: ClockAlignment | None) -> bytes:
    """Return the beginning of the merged file: whose ranks, and how their clocks were moved."""
    merged = {
        "ranks": ranks,
        "pids_per_rank": PIDS_PER_RANK,
        "clocks": clocks.text if clocks else "as recorded",
        "offsets_ns": {str(f.rank): f.offset_ns for f in clocks.fits if f.status == "corrected"} if clocks else {},
    }
    return (
        f'{{\n  "schemaVersion": 1,\n  "displayTimeUnit": "ms",\n  "{MERGED_KEY}": '.encode()
        + msgspec.json.encode(merged)
        + b',\n  "traceEvents": ['
    )


@contextmanager
def _open_output(output: Path) -> Iterator[IO[bytes]]:
    """Open the output, packed if its name says so; it takes its place only when everything was written."""
    make_dir(output.parent)
    temporary = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            if output.name.endswith(".gz"):
                with _gzip_packer()(filename="", mode="wb", compresslevel=_LEVEL, fileobj=file, mtime=0) as packed:
                    yield packed
            else:
                yield file
        temporary.replace(output)
    except OSError as error:
        raise write_error(output, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _gzip_packer() -> Callable[..., Any]:
    try:
        from isal import igzip
    except ImportError:
        return gzip.GzipFile
    return cast("Callable[..., Any]", igzip.IGzipFile)

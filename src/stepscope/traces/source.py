"""Opening a trace file: decompressed bytes in chunks, whatever it is packed with."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, cast

from stepscope.core.errors import DataError
from stepscope.traces.events import Note

CHUNK_BYTES = 512 << 10  # a chunk's decoded events should stay in the processor's cache
_PACKED_BYTES = 256 << 10
_PACKED_ZSTD_BYTES = 16 << 10  # zstd unpacks whatever it is given: a smaller bite keeps what comes out small

SQLITE_MAGIC = b"SQLite format 3\0"
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


def is_packed(head: bytes) -> bool:
    """Whether a file that begins with these four bytes is packed."""
    return head[:2] == _GZIP_MAGIC or head == _ZSTD_MAGIC


class ByteSource:
    """The decompressed bytes of one file, read once from the start.

    ``notes`` tells afterwards what was wrong with the packing, ``broke_off`` whether its end is missing. Packing is told
    by the first bytes, not by the name. ``taken``: bytes of the file itself that have gone into what was read so far.
    hole: [start, end) of a file without packing that is left out. Raises DataError for a missing, unreadable, empty or
    corrupt file.
    """

    def __init__(self, path: Path, *, chunk_bytes: int = CHUNK_BYTES, hole: tuple[int, int] | None = None) -> None:
        self.path = path
        self._hole = hole
        self.chunk_bytes = chunk_bytes
        self.bytes_read = 0
        self.taken = 0
        self.broke_off = False
        self.notes: list[Note] = []

    def __iter__(self) -> Iterator[bytes]:
        try:
            with self.path.open("rb") as file:
                head = file.read(4)
                file.seek(0)
                if not head:
                    raise DataError(
                        f"{self.path}: the file is empty",
                        why="a profiler that is killed while exporting leaves an empty file",
                        fix="export the trace again, or leave this file out",
                    )
                yield from self._chunks(file, head)
        except OSError as error:
            raise DataError(
                f"{self.path}: cannot be read",
                why=error.strerror or str(error),
                fix="check the path and its permissions",
            ) from error

    def _chunks(self, file: IO[bytes], head: bytes) -> Iterator[bytes]:
        if head[:2] == _GZIP_MAGIC:
            chunks = self._inflated(file)
        elif head == _ZSTD_MAGIC:
            chunks = self._unpacked_zstd(file)
        elif self._hole is not None:
            chunks = self._around(file, *self._hole)
        else:
            chunks = iter(lambda: file.read(self.chunk_bytes), b"")
        for chunk in chunks:
            self.bytes_read += len(chunk)
            self.taken = file.tell()
            yield chunk

    def _around(self, file: IO[bytes], start: int, end: int) -> Iterator[bytes]:
        while chunk := file.read(min(self.chunk_bytes, start - file.tell())):
            yield chunk
        file.seek(end)
        yield from iter(lambda: file.read(self.chunk_bytes), b"")

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        """All members of a gzip file; a stream that breaks off gives what it holds, and a note."""
        inflater, errors = _inflate()
        packed = b""
        while packed := _next_member(file, packed):
            if not packed.startswith(_GZIP_MAGIC):
                self.notes.append(Note(kind="dropped", text="bytes after the end of the gzip data are ignored"))
                return
            member = inflater(wbits=31)
            while not member.eof:
                packed = packed or file.read(_PACKED_BYTES)
                try:
                    chunk = member.decompress(packed, self.chunk_bytes)
                except errors as error:
                    raise self._corrupt(error) from error
                if chunk:
                    yield chunk
                elif not packed:
                    self._broke_off()
                    return
                packed = member.unused_data if member.eof else member.unconsumed_tail

    def _unpacked_zstd(self, file: IO[bytes]) -> Iterator[bytes]:
        """All frames of a zstd file, as above."""
        import zstandard

        context = zstandard.ZstdDecompressor()
        frame = None
        while packed := file.read(_PACKED_ZSTD_BYTES):
            while packed:
                frame = frame or context.decompressobj()
                try:
                    text = frame.decompress(packed)
                except zstandard.ZstdError as error:
                    raise self._corrupt(error) from error
                for start in range(0, len(text), self.chunk_bytes):
                    yield text[start : start + self.chunk_bytes]
                packed = frame.unused_data if frame.eof else b""
                frame = None if frame.eof else frame
        if frame is not None:
            self._broke_off()

    def _broke_off(self) -> None:
        self.broke_off = True
        text = "the compressed stream is truncated; the part before was read"
        self.notes.append(Note(kind="truncated", text=text))

    def _corrupt(self, error: Exception) -> DataError:
        return DataError(
            f"{self.path}: corrupt after {self.bytes_read:,} bytes of text",
            why=f"the compressed data cannot be decompressed ({error})",
            fix="copy or export the file again; `gzip -t` and `zstd -t` check a file",
        )


def _next_member(file: IO[bytes], packed: bytes) -> bytes:
    """Packed bytes from where the next gzip member begins, at least a header's worth; empty at the end.

    Zeros between members are padding.
    """
    packed = packed.lstrip(b"\0")
    while len(packed) < 64 and (more := file.read(_PACKED_BYTES)):
        packed = (packed + more).lstrip(b"\0")
    return packed


def _inflate() -> tuple[Callable[..., Any], tuple[type[Exception], ...]]:
    """A decompressobj as zlib's, and what it raises on corrupt data: isal where installed, 2x to 3x faster."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.decompressobj, (zlib.error,)
    return isal_zlib.decompressobj, (cast("type[Exception]", isal_zlib.error), zlib.error)

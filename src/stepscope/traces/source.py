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

_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


class ByteSource:
    """The decompressed bytes of one file, read once from the start.

    ``notes`` tells afterwards whether the compressed stream broke off. Packing is told by the first bytes,
    not by the name. Raises DataError for a missing, unreadable, empty or corrupt file.
    """

    def __init__(self, path: Path, *, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.path = path
        self.chunk_bytes = chunk_bytes
        self.bytes_read = 0
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
        else:
            chunks = iter(lambda: file.read(self.chunk_bytes), b"")
        for chunk in chunks:
            self.bytes_read += len(chunk)
            yield chunk

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        """All members of a gzip file; a stream that breaks off gives what it holds, and a note."""
        inflater, errors = _inflate()
        packed = b""
        member = inflater(wbits=31)
        while True:
            packed = packed or file.read(_PACKED_BYTES)
            if not packed:
                if not member.eof:
                    self._broke_off()
                return
            try:
                chunk = member.decompress(packed, self.chunk_bytes)
            except errors as error:
                raise self._corrupt(error) from error
            if chunk:
                yield chunk
            if member.eof:
                packed = member.unused_data.lstrip(b"\0") or file.read(_PACKED_BYTES)
                if not packed:
                    return
                member = inflater(wbits=31)
            else:
                packed = member.unconsumed_tail

    def _unpacked_zstd(self, file: IO[bytes]) -> Iterator[bytes]:
        import zstandard

        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        try:
            while chunk := reader.read(self.chunk_bytes):
                yield chunk
        except zstandard.ZstdError as error:
            raise self._corrupt(error) from error

    def _broke_off(self) -> None:
        text = "the compressed stream breaks off; what came before was read"
        self.notes.append(Note(kind="truncated", text=text))

    def _corrupt(self, error: Exception) -> DataError:
        return DataError(
            f"{self.path}: corrupt after {self.bytes_read:,} bytes of text",
            why=f"the compressed data does not unpack ({error})",
            fix="copy or export the file again; `gzip -t` and `zstd -t` check a file",
        )


def _inflate() -> tuple[Callable[..., Any], tuple[type[Exception], ...]]:
    """A decompressobj as zlib's, and what it raises on corrupt data: isal where installed, 2x to 3x faster."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.decompressobj, (zlib.error,)
    return isal_zlib.decompressobj, (cast("type[Exception]", isal_zlib.error), zlib.error)

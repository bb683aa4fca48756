"""Opening a trace file: decompressed bytes in chunks, whatever it is packed with.

Repairing the malformed JSON that profilers themselves write, where the intent is beyond doubt.

Seen in real files: bytes that are not UTF-8, raw control characters and unescaped quotes or backslashes in
names, ``NaN``, ``inf`` and ``-nan`` as numbers, halves of surrogate pairs. Only events that cannot be read are
touched. Every repair is counted by kind and told to the reader.
"""

from __future__ import annotations

import codecs
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any, cast

import msgspec

from stepscope.core.dataclass import dataclass
from stepscope.core.errors import DataError, unreadable
from stepscope.traces.events import Note

CHUNK_BYTES = 512 << 10  # a chunk's decoded events should stay in the processor's cache
_PACKED_BYTES = 256 << 10
_PACKED_ZSTD_BYTES = 16 << 10  # zstd unpacks whatever it is given: a smaller bite keeps what comes out small

SQLITE_MAGIC = b"SQLite format 3\0"
_GZIP_MAGIC = b"\x1f\x8b"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"


_LAYERS = 3
"""So many times may a file be packed: a name ending in .gz makes some tools pack what is packed already."""


def is_packed(head: bytes) -> bool:
    """Whether a file that begins with these four bytes is packed, or its text of another encoding."""
    return head[:2] == _GZIP_MAGIC or head == _ZSTD_MAGIC or _text_encoding(head) is not None


def _text_encoding(head: bytes) -> str | None:
    """Return the encoding of a text that begins with these four bytes; None for UTF-8."""
    if head in (b"\xff\xfe\0\0", b"\0\0\xfe\xff"):
        return "utf-32"
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16"
    if len(head) > 1 and head[1] == 0 and head[0] in _FIRST:
        return "utf-16-le"
    return "utf-16-be" if len(head) > 1 and head[0] == 0 and head[1] in _FIRST else None


_FIRST = b"{[ \t\r\n"
"""What a trace may begin with."""


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
            raise unreadable(self.path, error) from error

    def _chunks(self, file: IO[bytes], head: bytes) -> Iterator[bytes]:
        chunks = self._around(file, *self._hole) if self._hole is not None else self._text(file, head)
        for chunk in chunks:
            self.bytes_read += len(chunk)
            self.taken = file.tell()
            yield chunk

    def _text(self, file: IO[bytes], head: bytes) -> Iterator[bytes]:
        """Yield the text as UTF-8, out of whatever it is packed with."""
        packed: IO[bytes] = file
        for layer in range(_LAYERS):
            if head[:2] == _GZIP_MAGIC:
                inner = self._inflated(packed)
            elif head == _ZSTD_MAGIC:
                inner = self._unpacked_zstd(packed)
            else:
                break
            if layer:
                self.notes.append(Note(kind="repaired", text=f"the file is packed {layer + 1} times"))
            first = next(inner, b"")
            if not is_packed(first[:4]):
                yield from chain([first], inner) if first else ()
                return
            packed, head = cast("IO[bytes]", _Unpacked(chain([first], inner))), first[:4]
        chunks = iter(lambda: packed.read(self.chunk_bytes), b"")
        encoding = _text_encoding(head)
        yield from chunks if encoding is None else self._decoded(chunks, encoding)

    def _decoded(self, chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
        self.notes.append(Note(kind="repaired", text=f"the text is {encoding.upper()}, not UTF-8"))
        decoder = codecs.getincrementaldecoder(encoding)(errors="replace")
        for chunk in chunks:
            yield decoder.decode(chunk).encode(errors="replace")
        yield decoder.decode(b"", final=True).encode(errors="replace")

    def _around(self, file: IO[bytes], start: int, end: int) -> Iterator[bytes]:
        while chunk := file.read(min(self.chunk_bytes, start - file.tell())):
            yield chunk
        file.seek(end)
        yield from iter(lambda: file.read(self.chunk_bytes), b"")

    def _inflated(self, file: IO[bytes]) -> Iterator[bytes]:
        """Yield all members of a gzip file; a stream that breaks off gives what it holds, and a note."""
        inflater, errors = _inflater()
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
        """Yield all frames of a zstd file; one that breaks off gives what it holds, and a note."""
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


class _Unpacked:
    """What is read from a packed file inside another one: from the start, in pieces."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, b""

    def read(self, size: int) -> bytes:
        self._rest = self._rest or next(self._chunks, b"")
        piece, self._rest = self._rest[:size], self._rest[size:]
        return piece


def _next_member(file: IO[bytes], packed: bytes) -> bytes:
    """Packed bytes from where the next gzip member begins, at least a header's worth; empty at the end.

    Zeros between members are padding.
    """
    packed = packed.lstrip(b"\0")
    while len(packed) < 64 and (more := file.read(_PACKED_BYTES)):
        packed = (packed + more).lstrip(b"\0")
    return packed


def _inflater() -> tuple[Callable[..., Any], tuple[type[Exception], ...]]:
    """A decompressobj as zlib's, and what it raises on corrupt data: isal where installed, 2x to 3x faster."""
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.decompressobj, (zlib.error,)
    return isal_zlib.decompressobj, (cast("type[Exception]", isal_zlib.error), zlib.error)


KINETO_CUT = b"\n  },\n  {"
"""Between two events in the profiler's own layout."""

_NAN = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:NaN|nan|Infinity|infinity|Inf|inf)(?=\s*[,\]}\n])")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
# A name ends where the next key of its event begins, or with the object it is in.
_NAME = re.compile(
    rb'("name"\s*:\s*")(.*?)("(?:\s*,\s*"(?:pid|ph|args|ts|tid|cat|id|bp|s|dur)"\s*:|\s*\n\s*\}|\}\s*[,}]))', re.DOTALL
)
# What is right is matched too, and kept: an escaped backslash must not be taken for the start of an escape.
_BAD_ESCAPE = re.compile(rb'(\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))|\\')
_UNESCAPED_QUOTE = re.compile(rb'(\\.)|"', re.DOTALL)
_LONE_SURROGATE = re.compile(
    rb"(\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
_RAW_BREAK = re.compile(rb"[\t\r\n]")
_CUT_WORD = re.compile(rb"[:\[,]\s*(?:t|tr|tru|f|fa|fal|fals|n|nu|nul|-)\Z")
_PLACE = re.compile(r"\(byte (\d+)\)")
_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class Repair:
    """Text after repair, and how many places of each kind were mended."""

    text: bytes
    kinds: Counter[str]


@dataclass(frozen=True, slots=True)
class TextDamage:
    """What is wrong with a text: where (byte), in the decoder's words; ``cut_short``: only its end is missing."""

    position: int
    text: str
    cut_short: bool


def repaired(text: bytes) -> Repair:
    """The text with every known defect mended; what cannot be mended is left as it is, so that it can be told."""
    kinds: Counter[str] = Counter()
    if _is_right(text):
        return Repair(text, kinds)
    pieces = text.split(KINETO_CUT)
    last = len(pieces) - 1
    for i, piece in enumerate(pieces):
        before, after = b"{" if i else b"", b"}" if i < last else b""
        if _is_right(before + piece + after):
            continue
        mended = _mended_piece(piece, before, after)
        if mended is not None:
            pieces[i] = mended.text
            kinds += mended.kinds
    return Repair(KINETO_CUT.join(pieces), kinds)


def why_invalid(block: bytes) -> TextDamage | None:
    """Return None when the text is a sequence of JSON values separated by commas, else the first thing wrong with it."""
    try:
        _RAW_LIST.decode(b"[" + block + b"]")
    except msgspec.DecodeError as error:
        text = str(error)
        place = _PLACE.search(text)
        # The bracket that closes our list stands where a cut text goes on.
        position = int(place[1]) - 1 if place else len(block)
        word = _CUT_WORD.search(block, max(0, len(block) - 64))
        end = word.start() if word else len(block.rstrip(b" \t\r\n"))
        cut_short = "truncated" in text or position >= end
        return TextDamage(min(position, len(block)), text.partition(" (byte")[0], cut_short)
    except RecursionError:
        return TextDamage(0, "lists within lists, too deep to be an event", cut_short=False)
    return None


def is_valid(block: bytes) -> bool:
    """Whether the text is a sequence of JSON values separated by commas."""
    return why_invalid(block) is None


def _is_right(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return is_valid(text)


def _mended_piece(piece: bytes, before: bytes, after: bytes) -> Repair | None:
    """Mend one event, or a text without known boundaries; None when it is not readable, nor merely cut short, afterwards."""
    kinds: Counter[str] = Counter()
    try:
        piece.decode()
    except UnicodeDecodeError:
        piece = piece.decode(errors="replace").encode()
        kinds["bytes that are not UTF-8"] += 1
    piece = _counted_replacement(_CONTROL, b" ", piece, kinds, "control characters")
    piece = _counted_replacement(_NAN, rb"\1null", piece, kinds, "NaN or infinite numbers")
    piece = _mended_text(_BAD_ESCAPE, rb"\\", piece, kinds, "invalid backslash escapes")
    piece = _mended_text(_LONE_SURROGATE, rb"\ufffd", piece, kinds, "incomplete characters")
    problem = why_invalid(before + piece + after)
    if problem is None:
        return Repair(piece, kinds)

    def mend_name(match: re.Match[bytes]) -> bytes:
        inner = _mended_text(_UNESCAPED_QUOTE, rb"\"", match[2], kinds, "unescaped quotes in names")
        inner = _counted_replacement(_RAW_BREAK, b" ", inner, kinds, "line breaks in names")
        return match[1] + inner + match[3]

    named = _NAME.sub(mend_name, piece)
    after_names = why_invalid(before + named + after)
    if after_names is None or (after_names.cut_short and not problem.cut_short):
        return Repair(named, kinds)
    return None


def _counted_replacement(pattern: re.Pattern[bytes], new: bytes, text: bytes, kinds: Counter[str], kind: str) -> bytes:
    text, count = pattern.subn(new, text)
    if count:
        kinds[kind] += count
    return text


def _mended_text(pattern: re.Pattern[bytes], new: bytes, text: bytes, kinds: Counter[str], kind: str) -> bytes:
    """Put ``new`` for every match outside the pattern's group, which holds what is right."""
    count = 0

    def mend(match: re.Match[bytes]) -> bytes:
        nonlocal count
        if match[1] is not None:
            return match[1]
        count += 1
        return new

    text = pattern.sub(mend, text)
    if count:
        kinds[kind] += count
    return text

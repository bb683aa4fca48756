"""Repairing the malformed JSON that profilers themselves write, where the intent is beyond doubt.

Seen in real files: bytes that are not UTF-8, raw control characters and unescaped quotes or backslashes in
names, ``NaN``, ``inf`` and ``-nan`` as numbers, halves of surrogate pairs. Only events that cannot be read are
touched. Every repair is counted by kind and told to the reader.
"""

from __future__ import annotations

import re
from collections import Counter

import msgspec

from stepscope.core.dataclass import dataclass

KINETO_CUT = b"\n  },\n  {"
"""Between two events in the profiler's own layout."""

_NAN = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:NaN|nan|Infinity|infinity|Inf|inf)(?=\s*[,\]}\n])")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
# A name ends where the next key of its event begins, or with the object it is in.
_NAME = re.compile(
    rb'("name"\s*:\s*")(.*?)("(?:\s*,\s*"(?:pid|ph|args|ts|tid|cat|id|bp|s|dur)"\s*:|\s*\n\s*\}|\}\s*[,}]))',
    re.DOTALL,
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
    """None when the text is a sequence of JSON values separated by commas, else the first thing wrong with it."""
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
    """One event, or a text without known boundaries. None when it is not readable, nor merely cut short, after it."""
    kinds: Counter[str] = Counter()
    try:
        piece.decode()
    except UnicodeDecodeError:
        piece = piece.decode(errors="replace").encode()
        kinds["bytes that are not UTF-8"] += 1
    piece = _count(_CONTROL, b" ", piece, kinds, "control characters")
    piece = _count(_NAN, rb"\1null", piece, kinds, "NaN or infinite numbers")
    piece = _mended(_BAD_ESCAPE, rb"\\", piece, kinds, "invalid backslash escapes")
    piece = _mended(_LONE_SURROGATE, rb"\ufffd", piece, kinds, "incomplete characters")
    problem = why_invalid(before + piece + after)
    if problem is None:
        return Repair(piece, kinds)

    def mend_name(match: re.Match[bytes]) -> bytes:
        inner = _mended(_UNESCAPED_QUOTE, rb"\"", match[2], kinds, "unescaped quotes in names")
        inner = _count(_RAW_BREAK, b" ", inner, kinds, "line breaks in names")
        return match[1] + inner + match[3]

    named = _NAME.sub(mend_name, piece)
    after_names = why_invalid(before + named + after)
    if after_names is None or (after_names.cut_short and not problem.cut_short):
        return Repair(named, kinds)
    return None


def _count(pattern: re.Pattern[bytes], new: bytes, text: bytes, kinds: Counter[str], kind: str) -> bytes:
    text, count = pattern.subn(new, text)
    if count:
        kinds[kind] += count
    return text


def _mended(pattern: re.Pattern[bytes], new: bytes, text: bytes, kinds: Counter[str], kind: str) -> bytes:
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

"""Repairing the malformed JSON that profilers themselves write, where the intent is beyond doubt.

Seen in real files: bytes that are not UTF-8, raw control characters and unescaped quotes or backslashes in
names, ``NaN``, ``inf`` and ``-nan`` as numbers. Every repair is counted by kind and told to the reader.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import msgspec

_NAN = re.compile(rb"(?<=[:,\[])(\s*)[-+]?(?:NaN|nan|Infinity|infinity|Inf|inf)(?=\s*[,\]}\n])")
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_NAME_LINE = re.compile(rb'("name": ")(.*?)(", "(?:pid|ph|args|ts|tid)")', re.DOTALL)
_BAD_ESCAPE = re.compile(rb'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_UNESCAPED_QUOTE = re.compile(rb'(?<!\\)"')
_RAW_BREAK = re.compile(rb"[\t\r\n]")


@dataclass(frozen=True, slots=True)
class Repair:
    """Text after repair, and how many places of each kind were mended."""

    text: bytes
    kinds: Counter[str]


def repaired(text: bytes) -> Repair:
    """The text with every known defect mended; it may still be invalid, which the caller's decoder tells."""
    kinds: Counter[str] = Counter()
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        text = text.decode("utf-8", errors="replace").encode()
        kinds["bytes that are not UTF-8"] += 1
    text = _count(_CONTROL, b" ", text, kinds, "control characters")
    text = _count(_NAN, rb"\1null", text, kinds, "NaN or infinite numbers")
    text = _count(_BAD_ESCAPE, rb"\\\\", text, kinds, "backslashes that escape nothing")

    def mend_name(match: re.Match[bytes]) -> bytes:
        inner = match[2]
        fixed = _count(_UNESCAPED_QUOTE, rb'\\"', inner, kinds, "unescaped quotes in names")
        fixed = _count(_RAW_BREAK, b" ", fixed, kinds, "line breaks in names")
        return match[1] + fixed + match[3]

    return Repair(_NAME_LINE.sub(mend_name, text), kinds)


def is_valid(block: bytes) -> bool:
    """Whether the text is a sequence of JSON values separated by commas."""
    try:
        _RAW_LIST.decode(b"[" + block + b"]")
    except msgspec.DecodeError:
        return False
    return True


_RAW_LIST = msgspec.json.Decoder(list[msgspec.Raw])


def _count(pattern: re.Pattern[bytes], new: bytes, text: bytes, kinds: Counter[str], kind: str) -> bytes:
    text, count = pattern.subn(new, text)
    if count:
        kinds[kind] += count
    return text

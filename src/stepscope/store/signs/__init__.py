"""Lines by which the text of a job says how it ended, or what stands in its way: a file a topic, a table of patterns.

A file exports ``SIGNS``: forms of one topic. A form is a text that is in each such line, and a pattern with a named group
for each fact; groups ``rank``, ``host`` and ``time`` say whose it is, where no prefix of a launcher does. What a kind means,
and what to do about it, is for rules (``diagnose/explanations.py``). A new form of a line is one entry here, and its mark
one in ``text_signs.SIGN_MARKS``::

    SignForm("nccl-no-route", b"No route to host", rb"Call to connect to (?P<peer>[\\d.]+)<\\d+> failed : No route to host")

Lines wrapped at a terminal's width are put together again; colours, progress bars before a line and the prefixes of
launchers are off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

from stepscope.records.imported import Sign
from stepscope.store.log_lines import LogLines, without_colours

TOPICS = ("ends", "nccl", "watchdog")
"""Files of this folder."""

MOST_SIGNS = 20_000
"""Signs of one file that are kept: ranks of large jobs repeat themselves."""

WRAPPED = 3
"""Lines that one statement may be wrapped into."""

_SHOWN = 300
_PREFIX = 400
"""Bytes before a statement in which launchers say whose it is."""


@dataclass(frozen=True, slots=True)
class SignForm:
    """Lines of one kind. mark: a text that each of them holds. pattern: groups are facts."""

    kind: str
    mark: bytes
    pattern: bytes

    @property
    def compiled(self) -> re.Pattern[bytes]:
        return _compiled(self.pattern)


@cache
def _compiled(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern)


@cache
def forms() -> tuple[SignForm, ...]:
    """Return the forms of all topics, in their order: the first that fits a line is its kind."""
    return tuple(form for topic in TOPICS for form in import_module(f"{__name__}.{topic}").SIGNS)


@cache
def _marks() -> re.Pattern[bytes]:
    """Return the pattern of what some line of every sign holds."""
    marks = {form.mark for form in forms()}
    return re.compile(b"|".join(re.escape(mark) for mark in sorted(marks)))


_RANKS = tuple(
    re.compile(pattern)
    for pattern in (
        rb"\[rank ?(\d{1,7})\]", rb"\brank[=:] ?(\d{1,7})\b", rb"\[Rank (\d{1,7})\]", rb"^\s*\[\d{1,7},(\d{1,7})\]<",
        rb"^\s*(\d{1,7}): ", rb"\[(?:default|trainer)?(\d{1,7})\]:",
    )
)  # fmt: skip
"""Whose line it is, the surest first."""

_HOSTS = tuple(
    re.compile(pattern)
    for pattern in (
        rb"(?:^|[\s>:])([A-Za-z0-9][\w.-]{0,80}):\d{1,8}:\d{1,8} \[", rb"\b(?:node|host(?:name)?)[=:] ?([\w.-]{1,80})",
        rb"\bip=([\d.]{7,15})", rb"^\S*?([\w-]{1,80}) \[std(?:err|out)\]", rb"^([\w.-]{1,80}) +\| ",
    )
)  # fmt: skip
_TIMES = re.compile(
    rb"\b(\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)|\b[EWIF](\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,9})?)"
)


def signs_of(path: Path) -> tuple[Sign, ...]:
    """Return the signs of a text file in its order; empty where it has none. Raises DataError for an unreadable file."""
    signs: list[Sign] = []
    pending: list[tuple[int, bytes]] = []
    marked = _marks()
    for number, raw in LogLines(path):
        pieces = without_colours(raw).split(b"\r")
        for line in pieces[-1:] if len(pieces) > 1 and not marked.search(raw) else pieces:
            if not pending and not marked.search(line):
                continue
            pending.append((number, line))
            whole = b" ".join(text for _, text in pending)
            if matched := _sign(whole, pending[0][0], path):
                signs.append(matched)
                pending = []
            elif len(pending) == WRAPPED or not marked.search(pending[0][1]):
                pending = pending[1:] if len(pending) > 1 and marked.search(line) else []
        if len(signs) >= MOST_SIGNS:
            break
    return tuple(signs)


def _sign(line: bytes, number: int, path: Path) -> Sign | None:
    for form in forms():
        if form.mark in line and (match := form.compiled.search(line)):
            values = {name: text.decode(errors="replace").strip() for name, text in match.groupdict().items() if text}
            prefix = line[max(0, match.start() - _PREFIX) : match.start()]
            rank = values.pop("rank", None) or _first(_RANKS, prefix)
            time = _TIMES.search(prefix)
            return Sign(
                kind=form.kind,
                source=str(path),
                line=number,
                text=line[match.start() :].decode(errors="replace").strip()[:_SHOWN],
                rank=None if rank is None else int(rank),
                host=values.pop("host", None) or _first(_HOSTS, prefix),
                time=values.pop("time", None) or (None if time is None else (time[1] or time[2]).decode()),
                values=values,
            )
    return None


def _first(patterns: Iterable[re.Pattern[bytes]], text: bytes) -> str | None:
    return next((match[1].decode() for pattern in patterns if (match := pattern.search(text))), None)

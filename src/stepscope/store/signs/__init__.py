"""Lines by which the text of a job says how it ended, or what stands in its way: a file a topic, a table of patterns.

A file exports ``SIGNS``: forms of one topic. A form is a text that is in each such line, and a pattern with a named group
for each fact; groups ``rank``, ``host`` and ``time`` say whose it is, where no prefix of a launcher does. What a kind means,
and what to do about it, is for rules (``diagnose/explanations.py``). A new form of a line is one entry here, its mark
one in ``text_signs.SIGN_MARKS``, and such a line in docs/reference/importers.md, which a test reads::

    SignForm("nccl-no-route", b"No route to host", rb"Call to connect to (?P<peer>[\\d.]+)<\\d+> failed : No route to host")

Lines wrapped at a terminal's width are put together again; colours, progress bars before a line and the prefixes of
launchers are off.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise
from pathlib import Path

from stepscope.records.imported import Sign
from stepscope.store.log_lines import LogLines, shape, without_colours

TOPICS = ("watchdog", "ends", "nccl", "exceptions")
"""Files of this folder, the general last: a watchdog's line is often an exception, too."""

MOST_SIGNS = 20_000
"""Signs of one kind and one rank that are kept of a file: a rank repeats itself. Every rank has its own."""

WRAPPED = 6
"""Lines that one statement may be wrapped into."""

_NARROW = 60
"""Bytes of a line from which on a terminal may have wrapped it."""

_SEAM = 60
_SHOWN = 300
_PREFIX = 400
"""Bytes before a statement in which launchers say whose it is."""


@dataclass(frozen=True, slots=True)
class SignForm:
    """Lines of one kind. mark: a text that each of them holds. pattern: groups are facts.

    cut: looked for where a line has a mark and no whole statement. beside: facts of the job, of use beside a sign only: on
    one line, and alone they make no text one of a job that failed. first: nothing but prefixes stands before it.
    """

    kind: str
    mark: bytes
    pattern: bytes
    cut: bool = False
    beside: bool = False
    first: bool = False

    def search(self, line: bytes) -> re.Match[bytes] | None:
        """Return where the line says it."""
        match = self.compiled.search(line) if self.mark in line else None
        return None if match is None or (self.first and not _BEFORE.fullmatch(line, 0, match.start())) else match

    @property
    def compiled(self) -> re.Pattern[bytes]:
        return _compiled_pattern(self.pattern)


@cache
def _compiled_pattern(pattern: bytes) -> re.Pattern[bytes]:
    return re.compile(pattern)


@cache
def forms() -> tuple[SignForm, ...]:
    """Return the forms of all topics, in their order: the first that fits a line is its kind."""
    return tuple(form for topic in TOPICS for form in import_module(f"{__name__}.{topic}").SIGNS)


@cache
def _marks_pattern(there: frozenset[bytes], *, beside: bool = False) -> re.Pattern[bytes]:
    """Return the pattern of what some line of every sign holds, of marks that are in the file."""
    marks = {form.mark for form in forms() if form.beside == beside and form.mark in there}
    return re.compile(b"|".join(re.escape(mark) for mark in sorted(marks)) or b"(?!)")


_BEFORE = re.compile(
    rb"(?:\s|\[[^\]\s]{1,60}\](?:<\w+>)?:?|\[[\d/T:., -]{8,40}\]|\([^()]{1,90}\)|[\w.-]{1,60} +\||\d{1,6}:|[\w.-]*\d[\w.-]*:"
    rb"|\d{4}[-/]\d\d[-/]\d\d[T ][\d:.,]{8,18}Z?|[-\w. ]{0,40}\b(?:ERROR|CRITICAL|FATAL)\b[\w. ]{0,40}[:|\]-]+"
    rb"|std(?:err|out) [FP]|(?:node|host|rank|local_rank|step)=\S{1,60}|(?:traceback|msg) *:|[>*])*"
)
"""What launchers, containers and loggers put before a line."""

_RANKS = tuple(
    re.compile(pattern)
    for pattern in (
        rb"\[rank ?(\d{1,7})\]", rb"\brank[=:] ?(\d{1,7})\b", rb"\[Rank (\d{1,7})\]", rb"^\s*\[\d{1,7},(\d{1,7})\]<",
        rb"^\s*(\d{1,7}): ", rb"\[(?:default|trainer)?(\d{1,7})\]:", rb"\(default_pg\) Rank (\d{1,7})\]",
    )
)  # fmt: skip
"""Whose line it is, the surest first."""
_SURE = 4
"""So many of them count over all hosts, as a line's own member of a group does; the others may be a host's own numbers."""

_HOSTS = tuple(
    re.compile(pattern)
    for pattern in (
        rb"(?:^|[\s>:])(?!\d\d:\d\d:\d\d )([A-Za-z0-9][\w.-]{0,80}):\d{1,8}:\d{1,8} \[",
        rb"\b(?:node|host(?:name)?)[=:] ?([\w.-]{1,80})",
        rb"\bip=([\d.]{7,15})", rb"^\S*?([\w-]{1,80}) \[std(?:err|out)\]", rb"^([\w.-]{1,80}) +\| ",
        rb"([\w.-]{1,80}) kernel: ", rb"^([a-z][\w.-]{0,60}\d): \[\d{4}-",
    )
)  # fmt: skip
_PROCESS = re.compile(rb"\bpid[=:] ?(\d+)")
_TIMES = re.compile(
    rb"\b(\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)|\b[EWIF](\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,9})?)"
)


_OF_PATH = re.compile(r"(?:attempt_\d+/|(?:^|[/_.-])(?:global_?)?rank[-_.]?)(\d{1,7})(?=[/_.-]|$)", re.IGNORECASE)
"""The rank in the name of a file or of its folder: of torchrun's logs, or of a script's own."""

_WHOSE = re.compile(rb"\s*(?:\[[^\]]{5,40}\]\s*)?(?:[\w-]{1,40}=\S{1,80}\s*){1,9}")
"""A line that only says whose the next ones are: ``[2025-05-21 03:28:40] node=gp-02 rank=5 step=9120``."""


def signs_of(path: Path, there: frozenset[bytes]) -> tuple[Sign, ...]:
    """Return the signs of a text file in its order; empty where it has none. Raises DataError for an unreadable file.

    there: the marks that the file holds.
    """
    of_file = _Found(path)
    pending: list[tuple[int, bytes]] = []
    marked, beside = (
        _marks_pattern(there),
        _marks_pattern(frozenset(form.mark for form in forms() if form.beside), beside=True),
    )
    at = 0
    for number, raw in _lines_near_marks(LogLines(path, texts=True), b"|".join((marked.pattern, beside.pattern))):
        if number > at + 1:
            of_file.before = b""
        at = number
        pieces = without_colours(raw).split(b"\r")
        for line in pieces[-1:] if len(pieces) > 1 and not marked.search(raw) else pieces:
            has_mark = marked.search(line) is not None
            if not has_mark and not pending and len(of_file.before) >= _NARROW:
                seam = of_file.before[-_SEAM:], line[:_SEAM]
                if marked.search(b"".join(seam)) or marked.search(b" ".join(seam)):
                    pending = [(number - 1, of_file.before)]
            if has_mark and of_file.take(line, number):
                of_file.take_cut(pending)
                pending = []
            elif pending or has_mark:
                pending.append((number, line))
                if of_file.take_wrapped(pending):
                    pending = []
                elif not has_mark and beside.search(line) and of_file.take(line, number, beside=True):
                    pending.pop()
                elif len(pending) == WRAPPED:
                    of_file.take_cut(pending[:1])
                    pending = [unfinished for unfinished in pending[1:] if marked.search(unfinished[1])]
            elif beside.search(line):
                of_file.take(line, number, beside=True)
            if not pending:
                of_file.before = b"" if has_mark else line
    of_file.take_cut(pending)
    return of_file.all


def _lines_near_marks(file: LogLines, marks: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that hold a mark, also one broken at a seam, and those around them. marks: their pattern.

    A log repeats itself: of lines that differ in digits only, one is looked at, with the line before.
    """
    marked, reach = re.compile(shape(marks)), WRAPPED + 2
    at_hand: list[tuple[int, bytes]] = []
    fresh = 0
    for first, lines in file.batches():
        at_hand = [*at_hand[-reach:], *enumerate(lines, first)]
        shapes = shape(without_colours(b"\n".join(line for _, line in at_hand))).split(b"\n")
        pairs = list(pairwise([b"", *shapes]))
        marked_pairs = {pair for pair in set(pairs) if _holds_mark(marked, *pair)}
        if marked_pairs:
            hits = [at for at, pair in enumerate(pairs) if pair in marked_pairs]
            near = {at for hit in hits for at in range(max(fresh, hit - reach), min(len(at_hand), hit + reach))}
            yield from (at_hand[at] for at in sorted(near))
            fresh = max(near, default=fresh - 1) + 1
        fresh = max(0, fresh - max(0, len(at_hand) - reach))


def _holds_mark(marked: re.Pattern[bytes], before: bytes, line: bytes) -> bool:
    seam = (before[-_SEAM:], line[:_SEAM]) if len(before) >= _NARROW else ()
    return any(marked.search(text) for text in (line, b"".join(seam), b" ".join(seam)))


class _Found:
    """Signs of one file. before: the line before the one that is read."""

    def __init__(self, path: Path) -> None:
        self.signs: list[Sign] = []
        self.before = b""
        self._path = path
        self._certain = False
        self._kept: Counter[tuple[str, int | None]] = Counter()
        self._rank_of: dict[str | None, str] = {}
        own = _OF_PATH.findall("/".join(path.parts[-3:]))
        self._rank = own[-1] if own else None

    @property
    def all(self) -> tuple[Sign, ...]:
        return tuple(sorted(self.signs, key=lambda sign: sign.line)) if self._certain else ()

    def _keep(self, sign: Sign) -> None:
        self._kept[sign.kind, sign.rank] += 1
        if self._kept[sign.kind, sign.rank] <= MOST_SIGNS:
            self.signs.append(sign)

    def take_wrapped(self, lines: Sequence[tuple[int, bytes]]) -> bool:
        """Take a statement that goes over several lines, or began in the line before the one with its mark."""
        texts = [text for _, text in lines]
        return any(
            (len(lines) > 1 and self.take(between.join(texts), lines[0][0]))
            or self._take_from_before(between.join(texts), between, lines[0][0])
            for between in (b"", b" ")
        )

    def _take_from_before(self, whole: bytes, between: bytes, number: int) -> bool:
        """Whether a sign was found in a line that is joined with the one before it, where it was broken."""
        longer = self.before + between + whole
        for form in forms() if len(self.before) >= _NARROW else ():
            match = None if form.cut or form.beside or form.first else form.search(longer)
            if match and match.start() < len(self.before):
                self._keep(self._sign(form, match, longer, number - 1))
                self._certain = True
                return True
        return False

    def take_cut(self, lines: Iterable[tuple[int, bytes]]) -> None:
        """Take what is left of statements that have no end."""
        for number, line in lines:
            if not self.take(line, number, cut=True):
                self.take(line, number, beside=True)

    def take(self, line: bytes, number: int, *, cut: bool = False, beside: bool = False) -> bool:
        """Take the first form that fits a line, or lines put together."""
        for form in forms():
            if (form.cut, form.beside) == (cut, beside) and (match := form.search(line)):
                if not match.start() and not beside:
                    line, match = self._from_before(form, line) or (line, match)
                self._keep(self._sign(form, match, line, number))
                self._certain = self._certain or not beside
                return True
        return False

    def _may_begin(self, form: SignForm) -> bool:
        """Whether a statement of a form may begin in the line before."""
        return len(self.before) >= _NARROW and not form.first

    def _from_before(self, form: SignForm, line: bytes) -> tuple[bytes, re.Match[bytes]] | None:
        """Return the statement with its beginning, where a terminal wrapped it within what the form is of."""
        for whole in (self.before + b" " + line, self.before + line) if self._may_begin(form) else ():
            if (match := form.compiled.search(whole)) and match.start() < len(self.before):
                return whole, match
        return None

    def _sign(self, form: SignForm, match: re.Match[bytes], line: bytes, number: int) -> Sign:
        """Return the sign in a line, with rank, host and process from the line's prefix or the line before."""
        values = {name: text.decode(errors="replace").strip() for name, text in match.groupdict().items() if text}
        prefix = line[max(0, match.start() - _PREFIX) : match.start()]
        before = self.before if _WHOSE.fullmatch(self.before) else b""
        own = values.pop("rank", None) or _first_match(_RANKS[:_SURE] if "member" in values else _RANKS, prefix)
        if own is not None:
            self.before = b""
        rank = own or _first_match(_RANKS, before)
        process = _first_match((_PROCESS,), prefix)
        if rank is not None and process is not None:
            self._rank_of[process] = rank
        rank = rank or self._rank_of.get(process) or self._rank
        time = _TIMES.search(prefix) or _TIMES.search(before)
        return Sign(
            kind=form.kind,
            source=str(self._path),
            line=number,
            text=line[match.start() :].decode(errors="replace").strip()[:_SHOWN],
            rank=None if rank is None else int(rank),
            host=values.pop("host", None) or _first_match(_HOSTS, prefix) or _first_match(_HOSTS, before),
            time=values.pop("time", None) or (None if time is None else (time[1] or time[2]).decode()),
            values=values,
        )


def _first_match(patterns: Iterable[re.Pattern[bytes]], text: bytes) -> str | None:
    return next((match[1].decode() for pattern in patterns if (match := pattern.search(text))), None)

"""Tables of nccl-tests and rccl-tests in a text, whatever a launcher or a shell put around and before each line.

Read once, line by line, in constant memory: a log may hold gigabytes of other output.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.store.importer import reading, whole_words

MAX_LINE_BYTES = 1 << 14
BLOCK_BYTES = 1 << 17
MAX_ROWS = 100_000
"""Most rows of a file, more than any job prints: 1 byte to 32 GB takes 36 sizes."""

_COLOURS = re.compile(rb"\x1b\[[0-9;]*[A-Za-z]")
_TITLE = re.compile(r"size\s+count\s.*\balgbw\s+busbw\b")
_TITLES = re.compile(r"size\s+count\s+type\s+(.*?)\s*$")
_SETUP = re.compile(
    r"nThreads?:?\s+(?P<threads>\d{1,9})\s+nGpus:?\s+(?P<gpus>\d{1,9})\s+minBytes:?\s+(?P<low>\d{1,18})\s+"
    r"maxBytes:?\s+(?P<high>\d{1,18})"
)
_ITERATIONS = re.compile(r"warmup iters:\s*(?P<warmup>\d{1,15})\s+iters:\s*(?P<iters>\d{1,15})")
_TOGETHER = re.compile(r"agg iters:\s*(\d{1,15})")
_DEVICE = re.compile(
    r"Rank\s+(?P<rank>\d{1,7})(?:\s+Group\s+(?P<group>\d{1,7}))?\s+Pid\s+(?P<pid>\d+)\s+on\s+(?P<host>\S+)\s+device\s+\d+\s+"
    r"\[[^\]]*\]\s+(?P<name>\S+(?: \S+)*)\s*$"
)
_PROGRAM = re.compile(r"(?<![\w.])([a-z][a-z_]*)_perf\b")
_STARTING = re.compile(r"Collective test (starting|concluded):\s*(\w+?)_perf\b")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d{1,15})\s*(\w+)")
_AVERAGE = re.compile(r"Avg bus bandwidth\s*:\s*(\S+)")
_LIBRARY = re.compile(r"\b([NR]CCL version|[nr]ccl-tests)(?:\s*:?\s*|-)(?:[Vv]ersion:?\s*)?(\d[\w.+-]*|\w+:\w+)")
_BEGINS = re.compile(r"(?:^|[\s:>\]|)])(\d+)\s+(\d+)\s+([a-z]\w*)(?=\s)")
_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")
ROUNDING_GB = 0.005
"""Half a unit of the last digit: bandwidths are printed in GB/s with two decimals."""

_UNIT = re.compile(r"\(([^()]*)\)")
_ROOT = re.compile(r"-?\d{1,7}")
_TAG = re.compile(r"\s*(\([^()\s]{1,80}\)|\[[^\]\s]*\](?:<\w+>)?:?|<\w+>:?|[\w.-]*[A-Za-z][\w.-]*:|\d+:)")
"""What a launcher puts before a line, and before each piece of a row that is printed in pieces."""

_PIECE = re.compile(r"[\sN/A\d.e+*-]*")
_FIRST_PIECE = re.compile(r"\s+\d+")
_REST = re.compile(r"\s+(?:-?\d{1,7}\s+)?(?:(?:N/A|\d+(?:\.\d+)?(?:e[+-]?\d+)?\*?)\s*){8}")
_ERRORS = re.compile(r"(?:N/A|\d+(?:\.\d+)?(?:e[+-]?\d+)?\*?)")
_TALKS = re.compile(r"([\w.-]+):\d{1,10}:\d{1,10} \[\d{1,5}\] NCCL (?:INFO|WARN) ")
MOST = 1 << 53
"""Bytes and elements of a row are below this, its figures below 10^15; what is not is damage."""

_BYTES = {"float": 4, "double": 8, "half": 2, "bfloat16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8}
"""Type -> bytes of an element."""

_NUMBERS = 8
"""Number of figures that end every row: time, algbw, busbw and errors, out of place and in place."""

_MARKERS = (
    b"nThread", b" Pid ", b"_perf", b"busbw", b"bus bandwidth", b"bounds", b"CCL version", b"ccl-tests", b"<snip>",
    b"(elements)",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class LoggedFigures:
    """One form (out of or in place) of one size, as printed: microseconds, GB/s, errors. None: printed as N/A."""

    time_us: str | None
    algbw: str | None
    busbw: str | None
    errors: str | None


@record
class LoggedRow:
    line: int
    size_bytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    out_of_place: LoggedFigures
    in_place: LoggedFigures


@dataclass(frozen=True, slots=True)
class LoggedDevice:
    host: str
    name: str
    group: int


@dataclass(kw_only=True)
class LoggedRun:
    """One run of a test program. programs: names of ``*_perf`` before it; started: the one that says it is starting.

    titles: of its columns behind the type; empty: it has none. figures: of a table with more columns than the usual ones,
    where the usual ones are, behind the type; None: at the end. ended: its summary follows it, the average or the values
    out of bounds. cpu_time: its times are those of the host (``-C 1``); the bandwidths are always the device's.
    old_errors: the column ``error`` (largest deviation) instead of ``#wrong`` (number of wrong elements).
    jobs: the devices of each process that lists a rank 0, by host and process: several in one table are jobs that know
    nothing of each other; heads: how many titles stand before the first row.
    torn: lines that begin like a row and do not end like one, or contradict themselves. cut: ``<snip>`` stood inside
    the table.
    """

    programs: list[str] = field(default_factory=list)
    started: str | None = None
    threads: int | None = None
    gpus: int | None = None
    sizes: tuple[int, int] | None = None
    warmup: int | None = None
    iterations: int | None = None
    together: int = 1
    devices: dict[int, LoggedDevice] = field(default_factory=dict)
    devices_torn: bool = False
    jobs: dict[tuple[str, str], dict[int, LoggedDevice]] = field(default_factory=dict)
    heads: int = 0
    rows: list[LoggedRow] = field(default_factory=list)
    titles: tuple[str, ...] = ()
    figures: tuple[int, ...] | None = None
    ended: bool = False
    cpu_time: bool = False
    old_errors: bool = False
    out_of_bounds: int | None = None
    average: str | None = None
    libraries: list[str] = field(default_factory=list)
    torn: list[int] = field(default_factory=list)
    cut: bool = False

    @property
    def apart(self) -> tuple[str, ...]:
        """The host of each job, where the output of several that know nothing of each other is one table."""
        hosts = [host for (host, _), devices in self.jobs.items() if 0 in devices]
        if not self.jobs and self.heads > 1:
            hosts = ["unknown"] * self.heads
        sizes = Counter((row.size_bytes, row.dtype, row.redop, row.root) for row in self.rows)
        return tuple(hosts) if len(hosts) > 1 and max(sizes.values(), default=0) > 1 else ()


@record
class Log:
    tables: tuple[LoggedRun, ...]
    nccl_lines: int
    lines: int


def read_tables(path: Path, *, headless: bool = False) -> Log:
    """Read all tables of a file (.gz too). headless: rows count before any title. Raises DataError: unreadable file."""
    reader = _Reader(path)
    reader.inside = headless
    lines = nccl = 0
    for coloured in _line_blocks(path):
        block = _COLOURS.sub(b"", coloured) if b"\x1b" in coloured else coloured
        nccl += block.count(b" NCCL INFO ") + block.count(b" NCCL WARN ")
        if reader.inside or any(marker in block for marker in _MARKERS):
            for number, line in enumerate(block.split(b"\n"), start=lines + 1):
                if b" NCCL INFO " in line or b" NCCL WARN " in line:
                    reader.talk(line.decode("utf-8", errors="replace"), number)
                    continue
                if reader.open and line and reader.goes_on(line.decode("utf-8", errors="replace").rstrip("\r"), number):
                    continue
                if reader.device and line and reader.device.endswith(line.strip()):
                    reader.lose_device()
                elif any(marker in line for marker in _MARKERS):
                    reader.line(line.decode("utf-8", errors="replace").rstrip())
                    reader.device = line.rstrip() if b" Pid " in line else reader.device
                elif _may_be_row(line):
                    reader.row(line.decode("utf-8", errors="replace").rstrip(), number)
        lines += block.count(b"\n")
    return Log(tables=reader.finish(), nccl_lines=nccl, lines=lines)


def _line_blocks(path: Path) -> Iterator[bytes]:
    """Yield whole lines, many at a time, and the whole words of a last one without its end; of a longer line than any of
    interest, its end."""
    rest = b""
    with reading(path) as text:
        while block := text.read1(BLOCK_BYTES):
            whole, end, rest = (rest + block).rpartition(b"\n")
            rest = rest[-MAX_LINE_BYTES:]
            yield whole + end
    yield whole_words(rest)[0]


def _may_be_row(line: bytes) -> bool:
    """Return whether a line may be a row: those end in a number, in N/A or in an asterisk."""
    end = line.rstrip()[-1:]
    return bool(end) and end in b"0123456789A*" and b" " in line


class _Reader:
    """What was read of the table being read, and the tables before it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._table = LoggedRun()
        self._done: list[LoggedRun] = []
        self._rows = self._averages = 0
        self._hosts: set[str] = set()
        self.inside = False  # between a table's title and its end
        self.columns = self.units = ""  # why no row of the table counts
        self.device = b""  # the line of the last device, before the title
        self.open = ""  # of a row that NCCL's own lines run through, what was printed so far

    def line(self, text: str) -> None:
        """Take in one line that is no row."""
        if match := _SETUP.search(text):
            self._setup(match, text)
        elif " Pid " in text and self._table.titles:  # the list of another job, whose lines run into this table
            self._table.devices_torn = self._table.devices_torn or not self._table.rows
            if not self._table.rows and (match := _DEVICE.search(text)):
                self._job_of(match)
        elif " Pid " in text and _is_torn_device(text):
            self.lose_device()
        elif match := _DEVICE.search(text):
            device = self._job_of(match)
            if len(self._table.devices) > 1 and int(match["rank"]) in self._table.devices:
                self.lose_device()
            self._table.devices.setdefault(int(match["rank"]), device)
        elif match := _STARTING.search(text):
            self._program(match[2], ended=match[1] == "concluded")
        elif _TITLE.search(text):
            if self._table.rows and not self._runs_on():
                self._next()
            self._table.heads += 1
            self._table.old_errors = "#wrong" not in text
            match = _TITLES.search(text)
            self.device = b""
            self._table.titles = tuple(match[1].split()) if match else ()
            self._table.figures, self._table.cpu_time = _more_columns(self._table.titles), "cputime" in text
            self.inside, printed = True, _as_printed(self._table.titles)
            self.columns = "" if printed else f"columns that nccl-tests does not print: {' '.join(self._table.titles)}"
        elif "(elements)" in text:
            units = [
                unit
                for unit in _UNIT.findall(text[max(0, text.find("(B)")) :])
                if unit not in ("B", "elements", "us", "GB/s")
            ]
            self.units = f"a table in {', '.join(units)}, not in us and GB/s" if units else ""
        elif match := _BOUNDS.search(text):
            self._table.out_of_bounds = int(match[1])
            self._table.ended = True
        elif match := _AVERAGE.search(text):
            self._table.average = match[1]
            self._table.ended = True
            self._averages += 1
            if not self._runs_on():
                self.inside = False
                self._next()
        elif "<snip>" in text:
            self._table.cut = self._table.cut or bool(self._table.rows)
        else:
            self._take_versions(text)

    def _job_of(self, match: re.Match[str]) -> LoggedDevice:
        """Note a device as one of its process."""
        device = LoggedDevice(match["host"], match["name"], int(match["group"] or 0))
        self._table.jobs.setdefault((match["host"], match["pid"]), {})[int(match["rank"])] = device
        return device

    def _runs_on(self) -> bool:
        """Return whether jobs that know nothing of each other write into this table, and not all have ended."""
        return max(len(self._table.apart), self._table.heads if self._table.apart else 0) > self._averages

    def lose_device(self) -> None:
        """Note that the list of devices is torn here, and does not say how many there are."""
        self._table.devices_torn = True

    def talk(self, text: str, line: int) -> None:
        """Take in a line of NCCL itself: where it begins inside a row, what stands before it is a piece of that row."""
        match = _TALKS.search(text)
        if match is None:
            return
        name = match[1]
        if match.start() == 0 and name not in self._hosts and not (self.open and name[:1].isdigit()):
            self._hosts.add(name)
            return
        # A piece may end in the middle of a number, which then stands right before the host's name.
        hosts = (
            host for host in (*self._hosts, *(d.host for d in self._table.devices.values())) if name.endswith(host)
        )
        piece = text[: match.end(1) - len(max(hosts, key=len, default=name))]
        if not self.inside or not piece.strip():
            return
        if self.open and _BEGINS.search(piece):
            self._torn(line)
            self.open = ""
        if self.open or _BEGINS.search(piece) or _FIRST_PIECE.fullmatch(piece):
            self.open += piece

    def goes_on(self, text: str, line: int) -> bool:
        """Return whether this line ends the row that is open, which is then taken, or counted as torn."""
        whole, self.open = self.open + text, ""
        row = self._row_of(_BEGINS.search(whole), whole, line)
        if row is not None:
            self._take(row)
            return True
        self._torn(line)
        return _PIECE.fullmatch(text) is not None and _BEGINS.search(text) is None

    def _torn(self, line: int) -> None:
        self._table.torn.append(line)

    def row(self, text: str, line: int) -> None:
        """Take in a line that ends like a row; nothing happens where it is none."""
        begins = _BEGINS.search(text)
        row = self._row_of(begins, text, line)
        if row is None and (tag := _TAG.match(text)) is not None and tag[1] in text[tag.end() :]:
            text = text[tag.end() :].replace(tag[1], " ")
            row = self._row_of(begins := _BEGINS.search(text), text, line)
        if row is not None:
            self._take(row)
        elif (begins is not None and self._table.rows) or (self.inside and _REST.fullmatch(text)):
            self._torn(line)

    def _row_of(self, begins: re.Match[str] | None, text: str, line: int) -> LoggedRow | None:
        """Read the row of this line; None where it is none, has lost columns, or its figures contradict each other."""
        if begins is None or self.columns or self.units:
            return None
        words, titles, places = text[begins.end() :].split(), self._table.titles, self._table.figures
        if places is not None:
            if len(words) != len(titles) + titles.count("timestamp"):  # which is a date and a time
                return None
            words = [words[i] for i in (*range(min(places)), *places)]
        row = _logged_row(begins, words, line)
        if row is None or (titles and (row.root is None) == ("root" in titles)):
            return None
        return None if inconsistent(row, timed=not self._table.cpu_time) else row

    def _take(self, row: LoggedRow) -> None:
        """Add a row. Raises DataError for more than any job prints."""
        self._rows += 1
        if self._rows > MAX_ROWS:
            raise DataError(
                f"{self._path}: more than {MAX_ROWS} rows of results",
                why="no nccl-tests job prints that many",
                fix="split the file into one log per job",
            )
        self._table.rows.append(row)

    def finish(self) -> tuple[LoggedRun, ...]:
        self._next()
        if not self._done and (self.columns or self.units):
            raise DataError(f"{self._path}: {self.columns or self.units}", fix="pass the log as nccl-tests printed it")
        return tuple(self._done)

    def _program(self, name: str, *, ended: bool) -> None:
        """Take in the line that names the program, before its table or after it."""
        if not ended:
            self._next()
            self._table.started = name
        elif self._table.rows or self._done:
            last = self._table if self._table.rows else self._done[-1]
            last.started = last.started or name

    def _next(self) -> None:
        """End a table that has rows, and begin the next."""
        if self._table.rows:
            if self._table.apart:
                self._table.average = None  # each job has its own
                self._table.devices = next((of for of in self._table.jobs.values() if 0 in of), {})
                self._table.devices_torn = False
            self._done.append(self._table)
            self._table = LoggedRun()
        self._averages = 0

    def _setup(self, setup: re.Match[str], text: str) -> None:
        """Begin a table with the settings that its head states."""
        self._next()
        table = self._table
        table.threads, table.gpus = int(setup["threads"]), int(setup["gpus"])
        table.sizes = int(setup["low"]), int(setup["high"])
        table.devices.clear()
        table.devices_torn = False
        if iterations := _ITERATIONS.search(text):
            table.warmup, table.iterations = int(iterations["warmup"]), int(iterations["iters"])
        if together := _TOGETHER.search(text):
            table.together = int(together[1])

    def _take_versions(self, text: str) -> None:
        """Take in names of programs and versions, in commands and in what libraries say of themselves."""
        table = self._table
        table.programs += [name for name in _PROGRAM.findall(text) if name not in table.programs]
        for name, version in _LIBRARY.findall(text):
            library = f"{name.removesuffix(' version')} {version}"
            table.libraries += [] if library in table.libraries else [library]


def _is_torn_device(text: str) -> bool:
    """Return whether a line of the list of devices is run through by another one, or has lost its end."""
    return text.count(" Pid ") > 1 or text.count("#") > 1 or ("Rank " in text and _DEVICE.search(text) is None)


def _as_printed(titles: Sequence[str]) -> bool:
    """Return whether bandwidths and errors follow each time, as far as the title goes."""
    places = [i for i, word in enumerate(titles) if word in ("time", "cputime")]
    return all(
        word in expected
        for at in places
        for word, expected in zip(titles[at + 1 : at + 4], (("algbw",), ("busbw",), ("#wrong", "error")), strict=False)
    ) and (len(places) != 2 or places[1] + 4 <= len(titles))


def _more_columns(titles: Sequence[str]) -> tuple[int, ...] | None:
    """Return places of the usual figures behind the type, where others are between or after them (a time of day, times of
    single iterations); None where it has none."""
    first = [i for i, word in enumerate(titles) if word in ("time", "cputime")]
    places = tuple(i for start in first for i in range(start, start + _NUMBERS // 2))
    if len(first) != 2 or len(titles) == places[-1] + 1 == first[0] + _NUMBERS:
        return None
    return places


def _logged_row(begins: re.Match[str], words: list[str], line: int) -> LoggedRow | None:
    """Read a row from its words; None for one that was cut off or run through by another process."""
    middle, figures = words[:-_NUMBERS], words[-_NUMBERS:]
    if len(figures) < _NUMBERS or len(middle) > 2:
        return None
    out, into = _logged_figures(figures[:4]), _logged_figures(figures[4:])
    if out is None or into is None:
        return None
    # Before 2.12 each program had its own columns: broadcast a root and no redop, all_gather neither.
    root = middle.pop() if middle and _ROOT.fullmatch(middle[-1]) else None
    if len(middle) > 1 or (middle and not middle[0].isalpha()):
        return None
    sizes = begins[1], begins[2]
    if max(map(len, sizes)) > 17 or max(map(int, sizes)) >= MOST:
        return None
    redop = middle[0] if middle and middle[0] != "none" else None
    return LoggedRow(
        line=line,
        size_bytes=int(begins[1]),
        count=int(begins[2]),
        dtype=begins[3],
        redop=redop,
        root=None if root is None else int(root),
        out_of_place=out,
        in_place=into,
    )


def _logged_figures(words: list[str]) -> LoggedFigures | None:
    """Return the figures of one form; None where a word is no figure."""
    *numbers, errors = words
    if not all(n == "N/A" or _NUMBER.fullmatch(n) for n in numbers) or not _ERRORS.fullmatch(errors):
        return None
    time, algbw, busbw = (None if n == "N/A" else n for n in numbers)
    if any(float(n) >= 1e15 for n in (*numbers, errors.rstrip("*")) if n != "N/A"):
        return None
    return LoggedFigures(time, algbw, busbw, None if errors == "N/A" else errors)


def inconsistent(row: LoggedRow, *, timed: bool = True) -> bool:
    """Return whether a printed algbw is not size / time, beyond rounding, or the size not so many elements.

    timed: its times are those that the bandwidths are of.
    """
    if row.count and row.size_bytes % (row.count * _BYTES.get(row.dtype, 1)):
        return True
    for form in (row.out_of_place, row.in_place):
        if not timed or form.time_us is None or form.algbw is None or float(form.time_us) <= 0:
            continue
        time = float(form.time_us)
        derived = row.size_bytes / time / 1e3
        if abs(derived - float(form.algbw)) > (ROUNDING_GB + derived * half_unit(form.time_us) / time) * 1.01:
            return True
    return False


def half_unit(text: str) -> float:
    """Return half of the last printed digit's unit."""
    return 0.5 * 10.0 ** -len(text.partition(".")[2])


def begins_table(text: str) -> bool:
    """Return whether a line of a table's head stands in this text."""
    return _SETUP.search(text) is not None or _TITLE.search(text) is not None

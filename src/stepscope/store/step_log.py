"""Importers of training-job logs: what they all share, and those that are a table of patterns alone.

What every log has is known here: several ranks that print the same step, restarts, jobs appended to one log, lines that
another process wrote into, a last line that was cut off, ids of runs, and how a job ended. A format says how a step's line
reads, with a named group for each figure, and which other lines hold facts::

    IMPORTER = step_log(
        "widget_log",
        title="log of Widget",
        step=r"\\bit (?P<step>\\d+)/(?P<total_steps>\\d+) \\| loss (?P<loss>\\S+) \\| (?P<tokens_per_s>[\\d.,]+) tok/s",
        facts=(r"widget on (?P<world_size>\\d+) workers, batch (?P<global_batch>\\d+)", r"net: (?P<model>\\S+)"),
        begins=r"widget on \\d+ workers",
        done=r"all done",
        marks=("widget on",),
    )

Groups of a step's line are named as a table's columns would be, with their unit (``store/columns.py``): ``loss``,
``step_time_ms``, ``samples_per_s``, ``tokens_per_s_per_gpu``, ``peak_memory_gib``, ``epoch``; ``mfu`` in per cent. Groups of
``COUNTS`` and ``WORDS`` are facts in any line, others of ``facts`` become settings. What is peculiar to a format is a
:class:`LoggedJob` of its own: how facts become fields of the run, and what to note; or how its lines are read at all.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import groupby, repeat, zip_longest
from pathlib import Path
from typing import Any, Self

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.records.imported import Imported, Sign
from stepscope.records.nouns import Status
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate, Importer
from stepscope.store.log_lines import SUFFIXES, LogLines, finite, shape, without_prefix
from stepscope.store.text_signs import signs_beside
from stepscope.store.training_runs import NO_REASON, LoggedStep, Scalars, each_file, label, meaning_of, run_of

COUNTS = ("world_size", "global_batch", "micro_batch", "accumulation", "num_parameters", "total_steps")
"""Facts that are whole numbers. ``total_steps``: the step at which the job is complete."""
WORDS = ("model", "strategy", "precision", "hardware", "dataset", "device", "backend")
"""Facts that are words. Other names of groups become settings of the run."""

_SURE = 3
"""So many of them count even where a job did all that it was to do."""
_STATUS: tuple[tuple[str, Status, str], ...] = (
    ("oom", "oom", "out of memory {0}"),
    ("host-oom", "host_oom", "out of host memory {0}"),
    ("cancelled", "interrupted", "{0}: {1}"),
    ("timeout", "timeout", "a collective ran into its timeout {0}"),
    ("timeout-cut", "timeout", "a collective ran into its timeout {0}"),
    ("traceback", "error", "a traceback {0}"),
)
"""Kind of a sign, and the status and error of a job that has it, the first that fits."""

_NO_FIGURE = ("step", "steps", *COUNTS, *WORDS)
_NUMBER_GOES_ON = re.compile(rb"[\d.,]*[\d.]|[eE][-+\d]")
_NUMERAL = re.compile(rb"\d(?![\d,]*\})")
_PLAIN = re.compile(rb"-?(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d+)?(?:[eE][-+]?\d\d?)?")
_FEW_DIGITS = re.compile(rb"[\d,.]{1,16}")
_MOST_SHAPES = 10_000
_MANY = 100
"""So many lines of one shape one after the other are read at once."""
_SETTLED = 20
"""Steps after which their lines hold no new facts of the job."""
_LATELY = 4
"""Steps that ranks without a prefix may be apart in one log."""
_NUMBERS = re.compile(rb"\d[\d.,]*")
_USUAL = 0.2
"""How far from the steps before a rate may lie and be called usual, relative."""


@record
class Printed:
    """What jobs of a format print, as :func:`step_log` has it."""

    step: re.Pattern[bytes]
    facts: tuple[re.Pattern[bytes], ...] = ()
    begins: re.Pattern[bytes] | None = None
    done: re.Pattern[bytes] | None = None
    start: re.Pattern[bytes] | None = None
    places: dict[bytes, Places | None] = field(default_factory=dict, compare=False, init=False)
    """Shape of a line -> where its figures stand; None: it is read by the patterns each time."""

    def places_of(self, raw: bytes, line: bytes, match: re.Match[bytes]) -> Places | None:
        """Return where the figures stand in lines that are of the shape of this one, which is whole and of a step."""
        texts = {name: text for name, text in match.groupdict().items() if text is not None}
        figures = [name for name in texts if name not in _NO_FIGURE]
        if (
            not _sees_no_numeral(self.step, self.start, *self.facts)
            or not raw.endswith(line)
            or max(map(match.end, texts)) == len(line)  # whether its last number is cut off is seen from others
            or any(pattern.search(line) for pattern in self.facts)
            or not all(_PLAIN.fullmatch(texts[name]) for name in figures)
        ):
            return None
        begins = len(raw) - len(line)
        spans = {name: slice(match.start(name) + begins, match.end(name) + begins) for name in texts}
        return Places(
            begins=begins,
            form=_line_form(line),
            step=spans.get("step"),
            epoch=(spans["epoch"], spans["steps"]) if "epoch" in spans and "steps" in spans else None,
            length=spans.get("steps"),
            figures=tuple((name, spans[name], _of_groups if b"," in texts[name] else float) for name in figures),
            facts=frozenset(texts) & {*_NO_FIGURE[2:]},
        )


@dataclass(slots=True, kw_only=True)
class Places:
    """Where figures stand in lines of one shape. begins: behind prefixes. form: as a job's. facts: names of those in it."""

    begins: int
    form: bytes
    step: slice | None
    epoch: tuple[slice, slice] | None
    length: slice | None
    figures: tuple[tuple[str, slice, Callable[[bytes], float]], ...]
    facts: frozenset[str]

    def number_of(self, line: bytes, last: int) -> int:
        """Return the number of the step, as :meth:`LoggedJob.number_of`."""
        if self.step is None:
            return last + 1
        before = 0 if self.epoch is None else int(line[self.epoch[0]]) * int(line[self.epoch[1]])
        return before + int(line[self.step])

    def length_of(self, line: bytes) -> int:
        return 0 if self.length is None else int(line[self.length])

    def values(self, line: bytes) -> dict[str, float]:
        return {name: read(line[place]) for name, place, read in self.figures}

    def of_many(self, lines: Sequence[bytes]) -> tuple[list[int], list[dict[str, float]]] | None:
        """Return the steps and values of lines at once; None where they are to be read one by one."""
        import numpy as np  # a short log needs none

        table = np.frombuffer(b"".join(lines), np.uint8).reshape(len(lines), -1)
        texts = [lines[0][place] for _, place, _ in self.figures]
        groups = [place.start for (_, place, _), text in zip(self.figures, texts, strict=True) if b"," in text]
        if (
            self.step is None
            or self.epoch is not None
            or not all(_FEW_DIGITS.fullmatch(text) for text in texts)
            or (table[:, : self.begins] != table[0, : self.begins]).any()
            or (table[:, groups] == ord("0")).any()
        ):
            return None

        def column(place: slice) -> Any:
            """Return the number at this place of every line."""
            weight, weights = 1, []
            for sign in reversed(lines[0][place]):
                digit = chr(sign).isdigit()
                weights.append(weight if digit else 0)
                weight *= 10 if digit else 1
            return (table[:, place].astype(np.int64) - ord("0")) @ np.array(weights[::-1])

        columns = [
            (column(place) / 10 ** len(text.partition(b".")[2])).tolist()
            for (_, place, _), text in zip(self.figures, texts, strict=True)
        ]
        names = [name for name, _, _ in self.figures]
        return column(self.step).tolist(), [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


@cache
def _sees_no_numeral(*patterns: re.Pattern[bytes] | None) -> bool:
    """Return whether lines of the same shape fit alike."""
    return not any(_NUMERAL.search(pattern.pattern) for pattern in patterns if pattern is not None)


def _of_groups(text: bytes) -> float:
    """Read a number with groups of digits."""
    return number_of(text) if text.startswith((b"0", b"-0")) else float(text.replace(b",", b""))


@lru_cache(1000)
def _line_rank(prefix: bytes) -> int | None:
    return without_prefix(prefix)[0]


@dataclass(kw_only=True)
class LoggedJob:
    """What one job of a log printed so far.

    rank: of the lines that count; None: no launcher names it. facts: what it says of itself, as printed. total: the step at
    which it is complete. done: it says that it is. ends: of each group that ended a line of a step, what stood there.
    goes_on: more stands behind the groups. form: of the last line of a step, see :func:`_line_form`. length: steps of an
    epoch, as it states them; 0: it does not.
    """

    line: int
    printed: Printed | None = None
    rank: int | None = None
    facts: dict[str, str] = field(default_factory=dict)
    points: list[LoggedStep] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    total: int | None = None
    done: bool = False
    signs: tuple[Sign, ...] = ()
    ends: dict[str, list[bytes]] = field(default_factory=dict)
    goes_on: bool = False
    form: bytes = b""
    length: int = 0

    def again(self, number: int, *more: str) -> Self:
        """Return the job that begins in a line where steps begin again, of which the same is known. more: further fields."""
        names = ("printed", "ends", "goes_on", "form", "total", *more)
        return type(self)(line=number, facts=dict(self.facts), **{name: getattr(self, name) for name in names})

    def read(self, lines: LogLines, number: int, raw: bytes, form: bytes, /) -> Self | None:
        """Take in one line; return the job that begins with it, where one does. Raises DataError for a damaged file.

        form: its shape.
        """
        assert self.printed is not None
        shapes = self.printed.places
        if (places := shapes.get(form)) is not None and (not places.facts or places.facts <= self.facts.keys()):
            self.form, self.goes_on, self.length = places.form, True, places.length_of(raw)
            last = self.last
            who, step, values = _line_rank(raw[: places.begins]), places.number_of(raw, last), places.values(raw)
            if who != self.rank or not -1 < last < step:
                return self._step(number, who, step, values)
            self.points.append(LoggedStep(step, None, values))
            self.lines.append(number)
            return None
        rank, line = without_prefix(raw)
        match = self.printed.step.search(line)
        # Facts are printed at a job's start, or between its steps.
        settled = match is not None and len(self.points) > _SETTLED
        matches = [] if settled else [pattern.search(line) for pattern in self.printed.facts]
        if match is not None:
            if self._is_torn(line, match):
                lines.leave_out(number)
                return None
            self.form = _line_form(line)
            if form not in shapes:
                shapes.update({form: self.printed.places_of(raw, line, match)} if len(shapes) < _MOST_SHAPES else {})
            groups = {
                name: text for name, text in match.groupdict().items() if name not in _NO_FIGURE and text is not None
            }
            job = self._step(
                number, rank, self.number_of(match), {name: number_of(text) for name, text in groups.items()}
            )
            (job or self)._take_facts(match, *matches)
            return job
        if self._has_lost_its_end(line):
            lines.leave_out(number)
            return None
        # The first step may be logged between what ranks without a prefix print before it.
        under_way = len(self.points) > (1 if self.rank is None else 0)
        begins = under_way and rank in (None, self.rank) and _is_in(line, self.printed.begins)
        job = type(self)(line=number, printed=self.printed) if begins else None
        (job or self)._take_facts(*matches)
        (job or self).done |= _is_in(line, self.printed.done)
        return job

    def read_many(self, first: int, raws: Sequence[bytes], form: bytes) -> bool:
        """Take in lines of one shape, where they are steps of one rank in order; else return False."""
        places = self.printed and self.printed.places.get(form)
        if len(raws) < _MANY or not places or not places.facts <= self.facts.keys() or not self.points:
            return False
        read = places.of_many(raws)
        if read is None or _line_rank(raws[0][: places.begins]) != self.rank:
            return False
        steps, values = read
        if not all(map(operator.lt, [self.last, *steps], steps)):
            return False
        self.form, self.goes_on, self.length = places.form, True, places.length_of(raws[-1])
        self.points += map(LoggedStep, steps, repeat(None), values)
        self.lines += range(first, first + len(raws))
        return True

    def finish(self, rest: bytes) -> None:
        """Take in a line, or the last one, which has no end: it may say that the job is complete."""
        self.done = self.done or (self.printed is not None and _is_in(rest, self.printed.done))

    def run_fields(self) -> dict[str, Any]:
        """Return fields of the run beside its figures by step."""
        shares = sorted(share for point in self.points if (share := point.values.get("mfu", 0.0)) > 0)
        return {
            **{name: self.count(name) for name in COUNTS if name != "total_steps"},
            **{name: self.facts.get(name) for name in WORDS},
            "mfu": shares[len(shares) // 2] / 100 if shares else None,
            "label": label(self.facts.get("strategy"), self.count("world_size")),
            "settings": {name: value for name, value in self.facts.items() if name not in _NO_FIGURE},
        }

    def so_far(self) -> str:
        """Say how far the job came."""
        return f"after step {self.last}" + (f" of {self.total}" if self.total else "")

    def notes(self) -> list[str]:
        return [] if self.explained else [f"the log ends at step {self.last} {NO_REASON}"]

    def group(self, path: Path) -> str:
        return self.facts.get("model") or path.absolute().parent.name

    def none(self, lines: LogLines) -> DataError:
        """Return the error for a log without a step of any job, of which this is the last one."""
        why = "the log was cut off, or the job exited before its first step"
        return DataError(f"{lines.path}: no step was logged", why=why)

    def run(self, path: Path, run_id: str, unread: Sequence[str]) -> Imported:
        """Return the job as a run; it has made a step."""
        status, error = self.status()
        return run_of(
            Scalars(
                source=f"{path}:{self.line}",
                run_id=run_id,
                group=self.group(path),
                points=self.points,
                fields={
                    "status": status,
                    "error": error,
                    "last_step": self.last,
                    **self._near_end(),
                    **self.run_fields(),
                },
                notes=self.notes(),
                unread=tuple(unread),
            )
        )

    def _near_end(self) -> dict[str, int]:
        return {"near_end_line": self.lines[-3]} if len(self.lines) > 2 else {}

    @property
    def stopped(self) -> str | None:
        """What a line says of its cancellation."""
        return next((sign.text for sign in self.signs if sign.kind == "cancelled"), None)

    @property
    def explained(self) -> bool:
        """Whether it is known why its steps end."""
        return self.complete or self.stopped is not None

    def status(self) -> tuple[Status, str | None]:
        """Return how its signs say that it ended, and as far as which step; errors that it outlived count for nothing."""
        outlived = self._near_end().get("near_end_line", 0)
        kinds = {sign.kind for sign in self.signs if sign.kind != "traceback" or sign.line >= outlived}
        for kind, status, text in _STATUS[: _SURE if self.complete else None]:
            if kind in kinds:
                return status, text.format(self.so_far(), self.stopped)
        return "ok", None

    @property
    def last(self) -> int:
        """The last step logged; -1 before the first."""
        return self.points[-1].step if self.points else -1

    @property
    def complete(self) -> bool:
        return self.done or self.last == self.total

    def count(self, name: str) -> int | None:
        """Return a fact that is a whole number above 0, else None."""
        text = self.facts.get(name, "").replace(",", "")
        return int(text) if text.isdecimal() and len(text) < 16 and int(text) > 0 else None

    def _take_facts(self, *matches: re.Match[bytes] | None) -> None:
        """Keep the first print of each fact. Groups that are figures of a step are no facts."""
        for match in filter(None, matches):
            for name, text in match.groupdict().items():
                if text is not None and (
                    name in _NO_FIGURE[2:] or (self.printed is None or match.re is not self.printed.step)
                ):
                    self.facts.setdefault(name, text.decode(errors="replace"))
        self.total = self.count("total_steps")

    def _has_lost_its_end(self, line: bytes) -> bool:
        """Return whether a line of a step is torn before its next number."""
        if self.printed is not None and _is_in(line, self.printed.start):
            return True
        begun = _line_form(line.rstrip()) if len(line) < 2 * len(self.form) else b""
        return b"#" in begun and self.form.startswith(begun)

    def _is_torn(self, line: bytes, match: re.Match[bytes]) -> bool:
        """Return whether another line runs through this one, a number goes on behind its group, or the end is missing."""
        printed = self.printed
        if printed is None or max(len(p.findall(line)) for p in (printed.step, printed.start or printed.step)) > 1:
            return True
        for group in match.re.groupindex:
            if match[group] is not None and _NUMBER_GOES_ON.match(line, match.end(group)):
                return True
        last = max(match.re.groupindex, key=match.end)
        goes_on = match.end(last) < len(line)  # a blank shows that the number is whole
        if self.goes_on and not goes_on:  # other lines of steps have more behind it
            return True
        self.goes_on = self.goes_on or goes_on
        if goes_on:
            return False
        before = self.ends.setdefault(last, [])
        if _is_cut(match[last], before[-_LATELY:]):
            return True
        before.append(match[last])
        return False

    def number_of(self, match: re.Match[bytes]) -> int:
        """Return the number of a step's line: as printed, counted over epochs, else one more than the last."""
        self.length = int(match.groupdict().get("steps") or 0)
        if "step" not in match.re.groupindex:
            return self.last + 1
        epoch, length = (match.groupdict().get(name) for name in ("epoch", "steps"))
        before = int(epoch) * int(length) if epoch is not None and length is not None else 0
        return before + int(match["step"])

    def _step(self, number: int, rank: int | None, step: int, values: dict[str, float]) -> Self | None:
        """Put one logged step into its job: this one, or a new one where steps begin again."""
        job, last = self, self.last
        again = step == last or (step < last and rank is None and step in [p.step for p in self.points[-_LATELY:]])
        if self.points and (rank != self.rank or again):  # its peak counts
            own = self.points[-1].values
            own |= {
                name: max(own.get(name, value), value) for name, value in values.items() if name.startswith("peak_")
            }
            return None
        if step < last:
            job = self.again(number)
        job.rank = rank
        job.points.append(LoggedStep(step, values=values))
        job.lines.append(number)
        return None if job is self else job


def _is_in(line: bytes, pattern: re.Pattern[bytes] | None) -> bool:
    return pattern is not None and pattern.search(line) is not None


def _line_form(line: bytes) -> bytes:
    """Return the line with ``#`` for each number."""
    return _NUMBERS.sub(b"#", line)


def _is_cut(text: bytes, before: Sequence[bytes]) -> bool:
    """Return whether the number that ends a line has fewer decimals than all ``before``, or lacks digits to be like them."""
    whole, _, decimals = text.replace(b",", b"").partition(b".")
    others = [number.replace(b",", b"").partition(b".") for number in before]
    if not others or not whole.isdigit() or not all(number.isdigit() for number, _, _ in others):
        return False
    if len(decimals) < min(len(places) for _, _, places in others):
        return True
    usual = sorted(int(number) for number, _, _ in others)[len(others) // 2]
    missing = len(str(usual)) - len(whole)
    least, most = int(whole) * 10**missing, (int(whole) + 1) * 10**missing
    return missing > 0 and not decimals and least < (1 + _USUAL) * usual and most > (1 - _USUAL) * usual


def number_of(text: bytes) -> float:
    """Read a number, NaN for what is no finite one."""
    return math.nan if (value := finite(text)) is None else value


def read_jobs(path: Path, job: Callable[[int], LoggedJob]) -> tuple[Imported, ...]:
    """Return the runs of the jobs of one log. job: makes the one that begins in a line. Raises DataError without a step."""
    jobs, lines = [job(1)], LogLines(path)
    for first, batch in lines.batches():
        at = 0
        for form, of_form in groupby(shape(b"\n".join(batch)).split(b"\n")):
            alike = batch[at : at + len(list(of_form))]
            if not jobs[-1].read_many(first + at, alike, form):
                for number, raw in enumerate(alike, first + at):
                    for piece in raw.split(b"\r") if b"\r" in raw else (raw,):  # a progress bar overwrites itself
                        new = jobs[-1].read(lines, number, piece, form if piece is raw else shape(piece))
                        jobs += [] if new is None else [new]
            at += len(alike)
    jobs[-1].finish(lines.rest)
    signs = signs_beside((path,))
    for one, after in zip_longest(jobs, jobs[1:]):
        one.signs = tuple(s for s in signs if one.line <= s.line and (after is None or s.line < after.line))
    timed = [timed_job for timed_job in jobs if timed_job.last >= 0]
    if not timed:
        raise jobs[-1].none(lines)
    ids = [path.stem if len(timed) == 1 else f"{path.stem}-line{timed_job.line}" for timed_job in timed]
    unread = [*([()] * (len(timed) - 1)), lines.notes()]
    return tuple(
        replace(timed_job.run(path, run_id, notes), signs=signs if timed_job is timed[0] else ())
        for timed_job, run_id, notes in zip(timed, ids, unread, strict=True)
    )


def job_log(
    key: str,
    *,
    job: Callable[[int], LoggedJob],
    recognises: Callable[[Candidate], bool],
    compared: Callable[[tuple[TrainingRun, ...]], tuple[TrainingRun, ...]] | None = None,
    remarks: Callable[[Sequence[TrainingRun]], tuple[str, ...]] = lambda _: (),
    **form: Any,
) -> Importer:
    """Make an importer of a log in which jobs print their steps.

    key: the importer's file stem. job: makes the one that begins in a line. compared, remarks, form: as ``each_file``.
    """

    def read(path: Path) -> tuple[Imported, ...]:
        return read_jobs(path, job)

    return each_file(
        key, recognises=recognises, read=read, reads=SUFFIXES, compared=compared, remarks=remarks, signed=True, **form
    )


def step_log(
    key: str,
    *,
    step: str,
    facts: Sequence[str] = (),
    begins: str | None = None,
    done: str | None = None,
    start: str | None = None,
    sign: str = "",
    job: type[LoggedJob] = LoggedJob,
    **form: Any,
) -> Importer:
    """Make an importer of a log with one line a step, from patterns; see the module's text.

    step: of that line, with a group ``step`` and one for each figure. facts: of these and other lines. begins: printed once
    at a job's start; done: at its end. start: of what begins like a line of a step and counts as torn where ``step`` does
    not fit. sign: what a line of a step holds by which the file is recognised. job: what is peculiar to the format. form:
    title, rank, marks, as :class:`Importer` has them. Raises ValueError for a group of ``step`` that nothing reads.
    """
    for name in re.compile(step).groupindex:
        if name not in (*_NO_FIGURE, "mfu") and meaning_of(name) is None:
            raise ValueError(f"{key}: nothing reads the group {name!r} of a step's line")
    lone = {"begins": begins, "done": done, "start": start}
    printed = Printed(
        step=re.compile(step.encode()),
        facts=tuple(re.compile(fact.encode()) for fact in facts),
        **{name: re.compile(text.encode()) for name, text in lone.items() if text is not None},
    )
    return job_log(
        key,
        job=lambda line: job(line=line, printed=printed),
        recognises=lambda file: any(
            sign.encode() in line and printed.step.search(without_prefix(line)[1]) for line in file.head.split(b"\n")
        ),
        **form,
    )

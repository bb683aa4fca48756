"""Importers of training-job logs: what they all share, and those that are declarations alone.

What every log has is known here: several ranks that print the same step, restarts, jobs appended to one log, lines that
another process wrote into, a last line that was cut off, ids of runs, and how a job ended. A format is a :class:`Job` that
takes in lines; of a log with one line a step it is made from patterns, whose named groups are figures and facts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.records.training import TrainingRun
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.log_lines import SUFFIXES, Ending, LogLines, finite, without_prefix
from stepscope.store.training_runs import LoggedStep, ReadRun, Scalars, imported_runs, label, meaning_of, run_of

COUNTS = ("world_size", "global_batch", "micro_batch", "accumulation", "num_parameters", "total_steps")
"""Facts that are whole numbers. ``total_steps``: the step at which the job is complete."""
WORDS = ("model", "strategy", "precision", "hardware", "dataset", "device", "backend")
"""Facts that are words. Other names of groups become settings of the run."""

_NUMBER_GOES_ON = re.compile(rb"[\d.,]*[\d.]|[eE][-+\d]")
_LATELY = 4
"""Steps that ranks without a prefix may be apart in one log."""
_NUMBERS = re.compile(rb"\d[\d.,]*")
_USUAL = 0.2
"""How far from the steps before a rate may lie and be called usual, relative."""


@dataclass(kw_only=True)
class Job:
    """What one job of a log printed so far; one subclass a format.

    rank: of the lines that count; None: no launcher names it. facts: what it says of itself, as printed. total: the step at
    which it is complete. done: it says that it is.
    """

    line: int
    rank: int | None = None
    facts: dict[str, str] = field(default_factory=dict)
    points: list[LoggedStep] = field(default_factory=list)
    total: int | None = None
    done: bool = False
    ending: Ending = field(default_factory=Ending)

    def read(self, lines: LogLines, number: int, raw: bytes) -> Self | None:
        """Take in one line; return the job that begins with it, where one does. Raises DataError for a damaged file."""
        raise NotImplementedError

    def finish(self, rest: bytes) -> None:
        """Take in the last line as it is, which has no end: what it says of the end of the job counts."""
        self.ending.read(rest)

    def run_fields(self) -> dict[str, Any]:
        """Return fields of the run beside its figures by step."""
        raise NotImplementedError

    def so_far(self) -> str:
        """Say how far the job came."""
        return f"after step {self.last}" + (f" of {self.total}" if self.total else "")

    def notes(self) -> list[str]:
        return [self.open_end] if self.open_end else []

    def group(self, path: Path) -> str:
        return path.absolute().parent.name

    def none(self, lines: LogLines) -> DataError:
        """Return the error for a log without a step of any job, of which this is the last one."""
        why = "the log was cut off, or the job exited before its first step"
        return DataError(f"{lines.path}: no step was logged", why=why)

    def run(self, path: Path, run_id: str, unread: Sequence[str]) -> ReadRun:
        """Return the job as a run; it has made a step."""
        status, error = self.ending.status(self.so_far(), complete=self.complete)
        return run_of(
            Scalars(
                source=f"{path}:{self.line}",
                run_id=run_id,
                group=self.group(path),
                points=self.points,
                fields={"status": status, "error": error, **self.run_fields()},
                notes=self.notes(),
                unread=tuple(unread),
            )
        )

    @property
    def last(self) -> int:
        """The last step logged; -1 before the first."""
        return self.points[-1].step if self.points else -1

    @property
    def complete(self) -> bool:
        return self.done or self.last == self.total

    @property
    def open_end(self) -> str | None:
        """The note of a job that ended early without saying why."""
        if self.complete or self.ending.stopped:
            return None
        return f"the log ends at step {self.last} and does not state why"

    def count(self, name: str) -> int | None:
        """Return a fact that is a whole number above 0, else None."""
        text = self.facts.get(name, "").replace(",", "")
        return int(text) if text.isdecimal() and len(text) < 16 and int(text) > 0 else None


def _form(line: bytes) -> bytes:
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


def job_log(
    key: str,
    *,
    title: str,
    job: Callable[[int], Job],
    recognises: Callable[[Candidate], bool],
    rank: int = 50,
    marks: tuple[str, ...] = (),
    deep: bool = False,
    compared: Callable[[tuple[TrainingRun, ...]], tuple[TrainingRun, ...]] | None = None,
    remarks: Callable[[Sequence[ReadRun]], tuple[str, ...]] = lambda _: (),
) -> Importer:
    """Make an importer of a log in which jobs print their steps.

    key: the importer's file stem. job: makes the one that begins in a line. compared: as ``imported_runs``. remarks: on all
    runs. The others as :class:`Importer` has them.
    """

    def read_file(path: Path) -> tuple[ReadRun, ...]:
        jobs, lines = [job(1)], LogLines(path)
        for number, raw in lines:
            if (new := jobs[-1].read(lines, number, raw)) is not None:
                jobs.append(new)
        jobs[-1].finish(lines.rest)
        timed = [timed_job for timed_job in jobs if timed_job.last >= 0]
        if not timed:
            raise jobs[-1].none(lines)
        ids = [path.stem if len(timed) == 1 else f"{path.stem}-line{timed_job.line}" for timed_job in timed]
        unread = [*([()] * (len(timed) - 1)), lines.notes()]
        return tuple(
            timed_job.run(path, run_id, notes) for timed_job, run_id, notes in zip(timed, ids, unread, strict=True)
        )

    def read(source: Candidate) -> Imported:
        parts, left_out = read_each(source, recognises, read_file, suffixes=SUFFIXES)
        runs = [run for part in parts for run in part]
        return imported_runs(key, source, runs, compared=compared, remarks=remarks(runs), left_out=left_out)

    return Importer(title=title, rank=rank, marks=marks, deep=deep, recognises=recognises, read_files=read)


def step_log(
    key: str,
    *,
    title: str,
    step: str,
    facts: Sequence[str] = (),
    begins: str | None = None,
    done: str | None = None,
    rank: int = 50,
    marks: tuple[str, ...] = (),
) -> Importer:
    """Make an importer of a log with one line a step.

    step: pattern of that line, with a group ``step`` and one for each figure, named as a table's column would be
    (``loss``, ``step_time_ms``, ``tokens_per_s``, ``peak_memory_gib``), or of ``COUNTS`` and ``WORDS``. facts: patterns of
    these and other lines; groups: ``COUNTS``, ``WORDS``, or settings. begins: printed once at a job's start; done: at its
    end. Raises ValueError for a group of ``step`` that nothing reads.
    """
    for name in re.compile(step).groupindex:
        if name not in ("step", *COUNTS, *WORDS) and meaning_of(name) is None:
            raise ValueError(f"{key}: nothing reads the group {name!r} of a step's line")
    patterns = _Patterns(
        step=re.compile(step.encode()),
        facts=tuple(re.compile(fact.encode()) for fact in facts),
        begins=None if begins is None else re.compile(begins.encode()),
        done=None if done is None else re.compile(done.encode()),
    )
    return job_log(
        key,
        title=title,
        job=lambda line: _DeclaredJob(line=line, patterns=patterns),
        recognises=lambda file: any(patterns.step.search(without_prefix(line)[1]) for line in file.head.split(b"\n")),
        rank=rank,
        marks=marks,
    )


@dataclass(frozen=True, kw_only=True)
class _Patterns:
    step: re.Pattern[bytes]
    facts: tuple[re.Pattern[bytes], ...]
    begins: re.Pattern[bytes] | None
    done: re.Pattern[bytes] | None


@dataclass(kw_only=True)
class _DeclaredJob(Job):
    """ends: of each group that ended a line of a step, what stood there. form: of the last one, see :func:`_form`."""

    patterns: _Patterns
    ends: dict[str, list[bytes]] = field(default_factory=dict)
    goes_on: bool = False
    form: bytes = b""

    def read(self, lines: LogLines, number: int, raw: bytes) -> Self | None:
        rank, line = without_prefix(raw)
        self.ending.read(line)
        if match := self.patterns.step.search(line):
            if self._is_torn(line, match):
                lines.leave_out(number)
                return None
            self.form = _form(line)
            job = self._step(number, rank, match)
            (job or self).take_facts(match, *(pattern.search(line) for pattern in self.patterns.facts))
            return job
        begun = _form(line.rstrip()) if len(line) < 2 * len(self.form) else b""
        if b"#" in begun and self.form.startswith(begun):  # torn before its next number
            lines.leave_out(number)
            return None
        begins, job = self.patterns.begins, self
        if begins is not None and begins.search(line) and self.points and rank == self.rank:
            job = type(self)(line=number, patterns=self.patterns)
        job.done = job.done or self._says_done(line)
        job.take_facts(*(pattern.search(line) for pattern in self.patterns.facts))
        return None if job is self else job

    def finish(self, rest: bytes) -> None:
        self.ending.read(rest)
        self.done = self.done or self._says_done(rest)

    def take_facts(self, *matches: re.Match[bytes] | None) -> None:
        """Keep the first print of each fact. Groups that are figures of a step are no facts."""
        for match in matches:
            own = match is not None and match.re is self.patterns.step
            for name, text in match.groupdict().items() if match is not None else ():
                if text is not None and (not own or name in COUNTS or name in WORDS):
                    self.facts.setdefault(name, text.decode(errors="replace"))
        self.total = self.count("total_steps")

    def _says_done(self, line: bytes) -> bool:
        return self.patterns.done is not None and self.patterns.done.search(line) is not None

    def _is_torn(self, line: bytes, match: re.Match[bytes]) -> bool:
        """Return whether another line runs through this one, a number goes on behind its group, or the end is missing."""
        if len(self.patterns.step.findall(line)) > 1:
            return True
        for group in match.re.groupindex:
            if match[group] is not None and _NUMBER_GOES_ON.match(line, match.end(group)):
                return True
        last = max(match.re.groupindex, key=match.end)
        goes_on = match.end(last) < len(line.rstrip())
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

    def _step(self, number: int, rank: int | None, match: re.Match[bytes]) -> Self | None:
        """Put one logged step into its job: this one, or a new one where steps begin again."""
        step, job = int(match["step"]), self
        if self.points and (rank != self.rank or step == self.last):
            return None
        if rank is None and step in [point.step for point in self.points[-_LATELY:]]:
            return None  # printed by another rank
        if step < self.last:
            same = {name: getattr(self, name) for name in ("patterns", "ends", "goes_on", "form", "total")}
            job = type(self)(line=number, facts=dict(self.facts), **same)
        job.rank = rank
        groups = {n: text for n, text in match.groupdict().items() if n not in ("step", *COUNTS, *WORDS)}
        job.points.append(LoggedStep(step, values={n: number_of(t) for n, t in groups.items() if t is not None}))
        return None if job is self else job

    def run_fields(self) -> dict[str, Any]:
        return {
            **{name: self.count(name) for name in COUNTS if name != "total_steps"},
            **{name: self.facts.get(name) for name in WORDS},
            "label": label(self.facts.get("strategy"), self.count("world_size")),
            "settings": {name: value for name, value in self.facts.items() if name not in (*COUNTS, *WORDS)},
        }

    def group(self, path: Path) -> str:
        return self.facts.get("model") or super().group(path)

"""Importers of training-job logs from declarations: patterns of lines, whose named groups are figures and facts.

The builder knows what every log has: prefixes of launchers and ranks, several ranks that print the same step, restarts,
jobs appended to one log, lines that another process wrote into, and a last line that was cut off.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.core.errors import DataError
from stepscope.records.imported import Imported
from stepscope.store.importer import Candidate, Importer, read_each
from stepscope.store.log_lines import SUFFIXES, Ending, LogLines, finite, without_prefix
from stepscope.store.training_runs import LoggedStep, ReadRun, Scalars, imported_runs, label, run_of

COUNTS = ("world_size", "global_batch", "micro_batch", "accumulation", "num_parameters", "total_steps")
"""Facts that are whole numbers. ``total_steps``: at which the job is complete."""
WORDS = ("model", "strategy", "precision", "hardware", "dataset", "device", "backend")
"""Facts that are words. Other names of groups become settings of the run."""

_NUMBER_GOES_ON = re.compile(rb"[\d.,]*[\d.]|[eE][-+\d]")
_LATELY = 4
"""Steps that ranks without a prefix may be apart in one log."""


@dataclass(kw_only=True)
class _Job:
    """What one job of a log printed so far. rank: of the lines that count; None: no launcher names it."""

    line: int
    rank: int | None = None
    facts: dict[str, str] = field(default_factory=dict)
    points: list[LoggedStep] = field(default_factory=list)
    goes_on: bool = False
    done: bool = False
    ending: Ending = field(default_factory=Ending)

    def count(self, name: str) -> int | None:
        """A fact that is a whole number above 0."""
        text = self.facts.get(name, "").replace(",", "")
        return int(text) if text.isdecimal() and len(text) < 16 and int(text) > 0 else None


def step_log(
    key: str,
    *,
    title: str,
    step: str,
    facts: Sequence[str] = (),
    begins: str | None = None,
    done: str | None = None,
    rank: int = 50,
) -> Importer:
    """An importer of a log with one line a step.

    key: the importer's file stem. step: pattern of that line, with a group ``step`` and one for each figure, named as a
    table's column would be (``loss``, ``step_time_ms``, ``tokens_per_s``, ``peak_memory_gib``). facts: patterns of other
    lines; groups: ``COUNTS``, ``WORDS``, or settings. begins: printed once at a job's start; done: at its end.
    """
    reader = _Reader(
        key=key,
        step=re.compile(step.encode()),
        facts=tuple(re.compile(each.encode()) for each in facts),
        begins=None if begins is None else re.compile(begins.encode()),
        done=None if done is None else re.compile(done.encode()),
    )
    return Importer(title=title, recognises=reader.recognises, read_files=reader.read, rank=rank)


@dataclass(frozen=True, kw_only=True)
class _Reader:
    """The declarations of one log."""

    key: str
    step: re.Pattern[bytes]
    facts: tuple[re.Pattern[bytes], ...]
    begins: re.Pattern[bytes] | None
    done: re.Pattern[bytes] | None

    def read(self, source: Candidate) -> Imported:
        parts, left_out = read_each(source, self.recognises, self._read_file, suffixes=SUFFIXES)
        return imported_runs(self.key, source, (run for part in parts for run in part), left_out=left_out)

    def recognises(self, candidate: Candidate) -> bool:
        return any(self.step.search(without_prefix(line)[1]) for line in candidate.head.split(b"\n"))

    def _read_file(self, path: Path) -> tuple[ReadRun, ...]:
        jobs, lines = [_Job(line=1)], LogLines(path)
        for number, raw in lines:
            rank, line = without_prefix(raw)
            job = jobs[-1]
            job.ending.read(line)
            if found := self.step.search(line):
                if self._is_torn(job, line, found):
                    lines.leave_out(number)
                else:
                    _take_step(jobs, number, rank, found)
                continue
            if self.begins is not None and self.begins.search(line) and job.points and rank == job.rank:
                job = _Job(line=number)
                jobs.append(job)
            if self.done is not None and self.done.search(line):
                job.done = True
            for pattern in self.facts:
                if fact := pattern.search(line):
                    for name, value in _texts(fact).items():
                        job.facts.setdefault(name, value)
        jobs[-1].ending.read(lines.rest)
        jobs[-1].done = jobs[-1].done or (self.done is not None and self.done.search(lines.rest) is not None)
        timed = [job for job in jobs if job.points]
        if not timed:
            raise DataError(
                f"{path}: no step was logged", why="the log was cut off, or the job exited before its first step"
            )
        return tuple(_run(path, job, lines.notes() if job is timed[-1] else (), alone=len(timed) == 1) for job in timed)

    def _is_torn(self, job: _Job, line: bytes, found: re.Match[bytes]) -> bool:
        """Whether another line runs through this one, a number goes on behind its group, or the end is missing."""
        if len(self.step.findall(line)) > 1:
            return True
        for group in found.re.groupindex:
            if found[group] is not None and _NUMBER_GOES_ON.match(line, found.end(group)):
                return True
        goes_on = max(found.end(group) for group in found.re.groupindex) < len(line.rstrip())
        if job.goes_on and not goes_on:  # other lines of steps have more behind it
            return True
        job.goes_on = job.goes_on or goes_on
        return False


def _texts(found: re.Match[bytes]) -> Mapping[str, str]:
    """Group -> its text, of those that matched."""
    return {name: text.decode(errors="replace") for name, text in found.groupdict().items() if text is not None}


def _take_step(jobs: list[_Job], number: int, rank: int | None, found: re.Match[bytes]) -> None:
    """Put one logged step into its job: the last one, or a new one where steps begin again."""
    job, step = jobs[-1], int(found["step"])
    if job.points:
        if rank != job.rank:
            return
        if step == job.points[-1].step or (rank is None and step in [p.step for p in job.points[-_LATELY:]]):
            return  # printed by another rank, or again
        if step < job.points[-1].step:
            job = _Job(line=number, facts=dict(job.facts), goes_on=job.goes_on)
            jobs.append(job)
    job.rank = rank
    values = {
        name: math.nan if (value := finite(text)) is None else value
        for name, text in found.groupdict().items()
        if name != "step" and text is not None
    }
    job.points.append(LoggedStep(step, values=values))


def _run(path: Path, job: _Job, left_out: Iterable[str], *, alone: bool) -> ReadRun:
    last, total = job.points[-1].step, job.count("total_steps")
    complete = job.done or last == total
    status, error = job.ending.status(f"after step {last}" + (f" of {total}" if total else ""), complete=complete)
    world, strategy = job.count("world_size"), job.facts.get("strategy")
    known: dict[str, Any] = {
        **{name: job.count(name) for name in COUNTS if name != "total_steps"},
        **{name: job.facts.get(name) for name in WORDS},
        "status": status,
        "error": error,
        "label": label(strategy, world),
        "settings": {name: value for name, value in job.facts.items() if name not in (*COUNTS, *WORDS)},
    }
    ends = [] if complete or job.ending.stopped else [f"the log ends at step {last} and does not state why"]
    return run_of(
        Scalars(
            source=f"{path}:{job.line}",
            run_id=path.stem if alone else f"{path.stem}-line{job.line}",
            group=job.facts.get("model") or path.absolute().parent.name,
            points=job.points,
            known=known,
            notes=ends,
            unread=tuple(left_out),
        )
    )

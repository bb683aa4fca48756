"""Figures of a job's diary into other tools: of a finished folder at once, of one that runs every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from stepscope.core.errors import DataError, StepscopeError, UsageError
from stepscope.core.words import unknown
from stepscope.report.exports import REGISTRY, Sink, Snapshot
from stepscope.results.diary import JobSteps, waited_for
from stepscope.results.figures import figures_of
from stepscope.results.goodput import goodput_of
from stepscope.results.job_figures import job_figures, rank_figures
from stepscope.results.profiled_job import ProfiledJob, read_profiled_job

EVERY_S = 15.0
"""Between two looks at a job that runs: Prometheus scrapes about as often."""

STRETCHES, LEAST_STEPS = 100, 10
"""Points of a curve at most in one write; steps of each."""

MOST_RANKS = 64
"""Of a job with more ranks curves are of the job alone."""


def export(folder: Path, targets: Sequence[str]) -> tuple[str, ...]:
    """Write the job of ``folder`` to each ``KIND:PLACE``; return where it lies. Raises StepscopeError."""
    job = read_profiled_job(folder)
    if job is None or job.steps is None:
        raise DataError(
            f"{folder} holds no step diary",
            why="it is not a folder of `stepscope run`" if job is None else "no rank has made a step",
            fix="name the folder that `stepscope run -o RUN` or `stepscope profile -o RUN` wrote",
        )
    exports = Exports(folder, targets)
    exports.write(job)
    return exports.close()


class Exports:
    """The open targets of one job. clock: seconds that only grow. Raises StepscopeError where one cannot be opened."""

    def __init__(self, folder: Path, targets: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._clock = clock
        self._due = clock()
        self._written = 0
        parsed = [parse_target(target) for target in targets]
        self._sinks: list[Sink] = [REGISTRY.load(key)(place, folder.resolve().name) for key, place in parsed]

    def look(self, *, last: bool = False) -> bool:
        """Write what the folder holds now, where it is time to; ``last``: in any case. Return whether it was written.

        Raises StepscopeError, OSError.
        """
        if not last and self._clock() < self._due:
            return False
        self._due = self._clock() + EVERY_S
        job = read_profiled_job(self._folder)
        if job is None or job.steps is None:
            return False
        self.write(job)
        return True

    def write(self, job: ProfiledJob) -> None:
        """Write to every target; the first failure is raised once all were asked."""
        assert job.steps is not None
        failed: StepscopeError | OSError | None = None
        now = _job_snapshot(job, job.steps, whole=True)
        stretches = tuple(_step_stretches(job, job.steps, after=self._written))
        for sink in self._sinks:
            try:
                sink.write(now, stretches)
            except (StepscopeError, OSError) as error:
                failed = failed or error
        if stretches:
            self._written = stretches[-1].step
        if failed is not None:
            raise failed

    def close(self) -> tuple[str, ...]:
        """Close every target and return where each lies."""
        return tuple(sink.close() for sink in self._sinks)


def parse_target(text: str) -> tuple[str, str]:
    """Return (kind, place) of ``KIND:PLACE``. Raises UsageError."""
    key, colon, place = text.partition(":")
    if key not in REGISTRY.names():
        raise UsageError(unknown("export", key, REGISTRY.names()), fix="KIND:PLACE, for example prometheus:metrics")
    if not colon or not place:
        raise UsageError(f"{text!r} names no place", fix=f"for example {key}:{_EXAMPLES.get(key, 'PLACE')}")
    return key, place


_EXAMPLES = {
    "prometheus": "/var/lib/node_exporter/textfile", "otlp": "http://localhost:4318", "tensorboard": "runs",
    "wandb": "my-project", "mlflow": "http://localhost:5000", "grafana": "stepscope.json",
}  # fmt: skip


def _job_snapshot(job: ProfiledJob, steps: JobSteps, *, whole: bool) -> Snapshot:
    """Return the job's figures up to its last step.

    whole: of all steps; else what lies between steps, memory and hardware, is left out: it is known of the whole job.
    """
    step = steps.all_steps if whole else int(steps.numbers[-1])
    first = steps.diaries[0]
    figures, ranks = job_figures(steps), rank_figures(steps) if whole or steps.ranks <= MOST_RANKS else {}
    late: frozenset[int] = frozenset()
    if whole:
        if (wall := goodput_of([job])) is not None:
            figures |= {key: figure.read(wall) for key, figure in figures_of("wall").items()}
        late = frozenset(steps.rank_numbers[at] for at in waited_for(steps))
    else:
        outside = ("diary_outside_ns", "outside_fraction", *figures_of("memory", "hardware"))
        for values in (figures, *ranks.values()):
            for key in outside:
                values[key] = None
    return Snapshot(
        job=job.name,
        step=step,
        at_unix_ns=first.header.start_unix_ns + float(np.nansum(first.whole_ns[: step - steps.first])),
        figures=figures,
        ranks=ranks,
        late=late,
        hosts={diary.rank: diary.header.host for diary in steps.diaries},
        ended=job.end is not None or all(diary.end is not None for diary in steps.diaries),
    )


def _step_stretches(job: ProfiledJob, steps: JobSteps, *, after: int) -> Iterator[Snapshot]:
    """Yield consecutive timed steps beyond the number ``after``, in stretches of equal count; of few steps one."""
    at = np.flatnonzero(steps.numbers > after)
    count = max(1, min(STRETCHES, at.size // LEAST_STEPS))
    for kept in np.array_split(at, count):
        if kept.size:
            part = steps.at(slice(int(kept[0]), int(kept[-1]) + 1))
            yield _job_snapshot(job, part, whole=False)

"""From paths and options to evidence: what commands that read results share, options and words on progress included."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from stepscope.cli.command import Options, argument, option
from stepscope.cli.console import err, log
from stepscope.core.errors import UsageError
from stepscope.core.words import counted, unknown

if TYPE_CHECKING:
    from stepscope.api.job import Job
    from stepscope.api.reading import Listening, ReadingOptions
    from stepscope.diagnose.rule import Rule
    from stepscope.records.nouns import Scaling as ScalingKind
    from stepscope.results.evidence import Evidence


WORLD_SIZE = option("Number of ranks, for runs whose files do not state it: exp021=4,exp044=4.", "RUN=N,...")
SCALING = option(
    "Where files do not state it: strong (same global batch on more ranks) or weak (same batch per rank).",
    "strong|weak",
)
COLUMNS = option("What a table's columns mean: tok_s=tokens_per_s; NAME=- leaves a column out.", "NAME=MEANING,...")
DROP_EPOCHS = option("Number of first epochs to leave out of epoch times.", "N", default=1, min=0)
EXECUTOR = option("Read traces on the workers of this dask cluster.", "dask://HOST:PORT")
COMMUNICATION = option(
    "Kernels with such names communicate: text in the name, or a regular expression.", "PATTERN", default=()
)
CLASSES = option("File of lines `communication PATTERN`, `computation PATTERN` or `copies PATTERN`.", "FILE")
PATHS = "Run folders, traces, or results of other tools (tables, logs, nccl-tests, ...)."


class EvidenceOptions(Options):
    """What is read, and what the user states of it: ``world_size``, ``columns`` and ``target_accuracy`` as typed."""

    paths: tuple[Path, ...] = argument(PATHS, "PATHS")
    world_size: str | None = WORLD_SIZE
    scaling: str | None = SCALING
    columns: str | None = COLUMNS
    target_accuracy: str | None = option("Also show the time to these validation accuracies.", "A,...")
    drop_epochs: int = DROP_EPOCHS
    cell: str | None = option("Only this cell of a run folder.", "ID")
    executor: str | None = EXECUTOR
    communication: tuple[str, ...] = COMMUNICATION
    class_: Path | None = CLASSES


_STOPPED = "terminated while reading"

WORTH_SAYING = 4 << 20
"""Bytes of a trace, mostly packed; from so many on reading it takes long enough for a word on the terminal."""


def read_evidence(options: EvidenceOptions, *, spans: bool = False) -> Evidence:
    """Return the evidence at the paths, as ``read_job`` does. Raises DataError, UsageError."""
    from stepscope.api.reading import read_job
    from stepscope.core.forks import stop_signals_raise

    asked, listening = _asked(options), _listening(options)
    with stop_signals_raise(_STOPPED):
        return read_job(options.paths, asked, spans=spans, listening=listening)


def job_of(options: EvidenceOptions, *, spans: bool = False, rules: Sequence[Rule] | None = None) -> Job:
    """Return the job at the paths, read and checked as ``read_evidence`` does. rules: those that judge it; None: all."""
    from stepscope.api.job import Job

    evidence = read_evidence(options, spans=spans)
    return Job(options.paths, lambda _: evidence, asked=_asked(options), rules=rules)


def each_evidence(options: EvidenceOptions) -> tuple[Evidence, ...]:
    """Read as ``read_evidence`` does, every path by itself; what the user states may be of a run at any of them."""
    from stepscope.api.reading import read_each
    from stepscope.core.forks import stop_signals_raise

    asked, listening = _asked(options), _listening(options)
    with stop_signals_raise(_STOPPED):
        return read_each(options.paths, asked, listening=listening)


def scaling_of(text: str | None) -> ScalingKind | None:
    """Return what ``--scaling`` says. Raises UsageError."""
    from stepscope.api.reading import SCALINGS

    if text is not None and text not in SCALINGS:
        raise UsageError(unknown("--scaling", text, SCALINGS))
    return cast("ScalingKind | None", text)


def _asked(options: EvidenceOptions) -> ReadingOptions:
    from stepscope.api.reading import ReadingOptions
    from stepscope.records.imported import Stated
    from stepscope.store.stated import parse_columns, parse_world_sizes

    return ReadingOptions(
        stated=Stated(
            world_size={} if options.world_size is None else parse_world_sizes(options.world_size),
            scaling=scaling_of(options.scaling),
            columns={} if options.columns is None else parse_columns(options.columns),
        ),
        cell=options.cell,
        drop_epochs=options.drop_epochs,
        targets=_targets(options.target_accuracy),
        communication=options.communication,
        classes=options.class_,
    )


def _listening(options: EvidenceOptions) -> Listening:
    from stepscope.api.reading import Listening

    reading = _log_reading if err().is_terminal else None
    return Listening(on_trace=reading, scheduler=scheduler_of(options.executor), log=log)


def scheduler_of(executor: str | None) -> str | None:
    """Return the scheduler that ``--executor`` names. Raises UsageError, MissingError."""
    if executor is None:
        return None
    from stepscope.traces.cluster import scheduler_of as address_of

    return address_of(executor)


def _targets(text: str | None) -> tuple[float, ...]:
    """Read accuracies between 0 and 1. Raises UsageError."""
    targets = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0 < value <= 1:
            raise UsageError(
                f"--target-accuracy {part.strip()!r} is not an accuracy between 0 and 1",
                fix="for example --target-accuracy 0.75,0.77",
            )
        targets.append(value)
    return tuple(targets)


def _log_reading(path: Path) -> None:
    if path.stat().st_size < WORTH_SAYING:
        return
    log(f"read {path.name}")


PROGRESS_AFTER_S, EVERY_S = 2.0, 1.0
TOLD_FROM_S = 3.0
"""A shorter wait needs no telling."""
LEARN_S, LEARN_SHARE = 0.7, 0.08
"""How long, and for what share of the bytes, the reading is watched before it is said how long the rest will take."""


class Watch:
    """Says on stderr, where reading takes long, how much longer, as its own beginning tells, and which ranks are done."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._sizes: dict[Path, int] = {}
        self._taken: dict[Path, int] = {}
        self._done = 0
        self._estimated = False
        self._logged_at = 0.0

    def started(self, files: Sequence[Path]) -> None:
        self._sizes = {file: file.stat().st_size for file in files}

    def advanced(self, path: Path, taken: int) -> None:
        self._taken[path] = taken
        elapsed = time.monotonic() - self._start
        whole, read = sum(self._sizes.values()), sum(self._taken.values())
        if self._estimated or elapsed < LEARN_S or read < LEARN_SHARE * whole:
            return
        self._estimated = True
        left = elapsed * (whole / max(read, 1) - 1)
        if left >= TOLD_FROM_S:
            from stepscope.core.units import format_bytes

            what = f"reading {counted(len(self._sizes), 'trace')}, {format_bytes(whole)}"
            log(f"{what}: about {left:.0f} s more")

    def done(self, path: Path) -> None:
        self._done += 1
        self.advanced(path, self._sizes[path])
        now = time.monotonic()
        if now - self._start > PROGRESS_AFTER_S and now - self._logged_at > EVERY_S and self._done < len(self._sizes):
            self._logged_at = now
            log(f"{self._done} of {len(self._sizes)} ranks read ({path.name})")

    def end(self) -> None:
        if time.monotonic() - self._start > TOLD_FROM_S:
            log(f"read in {time.monotonic() - self._start:.1f} s")

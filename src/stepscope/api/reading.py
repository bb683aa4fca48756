"""How a job is read as its user states it, in options of commands or keywords of ``stepscope.open``; what changes nothing is
refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.dataclass import record
from stepscope.core.errors import UsageError
from stepscope.core.words import counted, did_you_mean, unknown

if TYPE_CHECKING:
    from stepscope.records.imported import Stated
    from stepscope.records.trace_summary import TraceSummary
    from stepscope.results.evidence import Evidence
    from stepscope.traces.sections import StatedClass

SCALINGS = ("strong", "weak")


@record
class ReadingOptions:
    """What a user states of a job. targets: accuracies to give times to. drop_epochs: first epochs left out of epoch times.
    communication: patterns of kernels that communicate; classes: file of classes of kernels. window: which of several
    captures of the same ranks, the oldest 1. ranks: of trace files that do not record theirs, by path or name."""

    stated: Stated | None = None
    cell: str | None = None
    drop_epochs: int = 1
    targets: tuple[float, ...] = ()
    communication: tuple[str, ...] = ()
    classes: Path | None = None
    window: int | None = None
    ranks: Mapping[str, int] = field(default_factory=dict)

    @property
    def kernel_classes(self) -> tuple[StatedClass, ...]:
        """The stated classes of kernels. Raises UsageError."""
        if not self.communication and self.classes is None:
            return ()
        from stepscope.traces.stated_classes import stated_classes

        return stated_classes(self.communication, self.classes)


@record
class Listening:
    """Who hears of the reading. on_trace: told each trace file as it is finished. scheduler, log: of ``load_evidence``."""

    on_trace: Callable[[Path], None] | None = None
    scheduler: str | None = None
    log: Callable[[str], None] | None = None


NOBODY = Listening()


def read_job(
    paths: Sequence[Path], asked: ReadingOptions, *, spans: bool = False, listening: Listening = NOBODY
) -> Evidence:
    """Return the evidence at the paths. spans: also what timelines draw, of every trace. Raises DataError, and UsageError
    for facts that only the user knows and for what changes nothing."""
    from stepscope.results.joining import require_stated

    evidence = _load(paths, asked, asked.stated, spans=spans, listening=listening)
    require_stated(evidence, asked.stated)
    if listening.scheduler is not None and not evidence.traces:
        raise UsageError(f"--executor changes nothing: no traces in {', '.join(map(str, paths))}")
    _require_traces(evidence, asked)
    for option, stated in (("--drop-epochs", asked.drop_epochs != 1), ("--target-accuracy", bool(asked.targets))):
        if stated and not any(run.epochs for run in evidence.runs):
            raise UsageError(f"{option} changes nothing: no run here has epochs")
    _require_epochs(evidence, asked)
    return evidence


def read_each(paths: Sequence[Path], asked: ReadingOptions, *, listening: Listening = NOBODY) -> tuple[Evidence, ...]:
    """Read as ``read_job`` does, every path by itself; what the user states may be of a run at any of them."""
    from stepscope.core.places import telling_names
    from stepscope.records.imported import Stated
    from stepscope.results.joining import join, require_columns, require_stated, tables_of
    from stepscope.store.stated import require_known, stated_of_source

    names, given = telling_names(paths), asked.stated or Stated()
    read = []
    for path, name in zip(paths, names, strict=True):
        stated = stated_of_source(given, name, names)
        evidence = _load((path,), asked, stated, spans=False, listening=listening)
        require_stated(evidence)
        _require_traces(evidence, asked)
        _require_epochs(evidence, asked)
        read.append(evidence)
    joined = join(read, names)
    require_known(joined.runs, given, tables_of(joined))
    require_columns([source for evidence in read for source in evidence.sources], given)
    return tuple(read)


def _load(
    paths: Sequence[Path], asked: ReadingOptions, stated: Stated | None, *, spans: bool, listening: Listening
) -> Evidence:
    from stepscope.results.open import load_evidence

    _require_sound(asked)
    return load_evidence(
        paths,
        stated=stated,
        cell=asked.cell,
        drop_epochs=asked.drop_epochs,
        targets=asked.targets,
        spans=spans,
        on_trace=listening.on_trace,
        scheduler=listening.scheduler,
        classes=asked.kernel_classes,
        window=asked.window,
        ranks=asked.ranks,
        log=listening.log,
    )


def _require_sound(asked: ReadingOptions) -> None:
    """Raise UsageError for a value that cannot be meant."""
    stated = asked.stated
    if stated is not None and stated.scaling not in (None, *SCALINGS):
        raise UsageError(unknown("--scaling", str(stated.scaling), SCALINGS))
    for name, ranks in () if stated is None else stated.world_size.items():
        if ranks < 1:
            raise UsageError(f"--world-size {name}={ranks!r}", why="a job runs on a whole number of ranks, 1 or more")
    for target in asked.targets:
        if not 0 < target <= 1:
            raise UsageError(f"--target-accuracy {target!r} is not an accuracy between 0 and 1", fix="for example 0.75")
    if asked.drop_epochs < 0:
        raise UsageError(f"--drop-epochs {asked.drop_epochs}: a number from 0 on")
    if asked.window is not None and asked.window < 1:
        raise UsageError(f"--window {asked.window}: a number from 1 on, the oldest window 1")


def _require_traces(evidence: Evidence, asked: ReadingOptions) -> None:
    """Raises UsageError where something is stated of traces and there are none."""
    of_traces = {
        "communication": asked.communication, "class": asked.classes, "window": asked.window, "rank-of": asked.ranks
    }  # fmt: skip
    for name, value in of_traces.items():
        if value and not evidence.traces:
            raise UsageError(f"--{name} changes nothing: no traces in these results")
    summaries = [trace.summary for trace in evidence.traces]
    require_used(asked.communication, summaries)
    require_read(asked.ranks, summaries)


def _require_epochs(evidence: Evidence, asked: ReadingOptions) -> None:
    """Raises UsageError where all epochs of every run are left out."""
    if asked.drop_epochs == 1:
        return
    from stepscope.results.epochs import timed_epochs

    most = max((len({epoch.number for epoch in timed_epochs(run)}) for run in evidence.runs), default=0)
    if most and asked.drop_epochs >= most:
        raise UsageError(
            f"--drop-epochs {asked.drop_epochs} leaves no epoch",
            why=f"no run has more than {counted(most, 'timed epoch')}",
            fix=f"leave out at most {most - 1}" if most > 1 else "leave the option out",
        )


def require_used(communication: Sequence[str], summaries: Iterable[TraceSummary]) -> None:
    """Raises UsageError for a pattern that fits no kernel of any rank."""
    ranks = [rank for summary in summaries for rank in summary.ranks if not rank.partial]
    for pattern in communication if ranks else ():
        if all(any(f.kind == "unused-classes" and pattern in f.names for f in rank.quality) for rank in ranks):
            raise UsageError(
                f"--communication {pattern!r} changes nothing: no kernel has such a name",
                fix="see the kernels' names: stepscope trace ... --show kernels --limit 0",
            )


def require_read(ranks: Mapping[str, int], summaries: Iterable[TraceSummary]) -> None:
    """Raises UsageError for a file whose rank is stated and that was not read."""
    read = [p.facts.file for summary in summaries for p in summary.ranks]
    files = {*read, *(Path(file).name for file in read)}
    for name, rank in ranks.items():
        if name not in files:
            guess = did_you_mean(name, files)
            raise UsageError(
                f"--rank-of {name}={rank}: no trace {name!r} was read",
                fix=f"did you mean {guess!r}?" if guess else f"traces read: {', '.join(sorted(files)[:6])}",
            )

"""All ranks of a job: the per-rank passes mapped over processes, then what the ranks say together.

Traces of several captures in one folder: told apart by what their files are called, or by when they were taken.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError, MissingError, NoTraceError, StepscopeError, Unavailable, UsageError
from stepscope.core.words import counted, grouped, listed
from stepscope.records.trace_budget import BudgetVerdict
from stepscope.records.trace_summary import FileNote, RankPass, RankVerdict, TraceSummary, common_steps, missing_ranks
from stepscope.traces.file_names import home, natural, ranks_by_name
from stepscope.traces.load import Advanced, one_per_rank, trace_files
from stepscope.traces.rank_pass import outcome_of, passes_of
from stepscope.traces.sections import EVERY, Wanted

if TYPE_CHECKING:
    from stepscope.records.trace_collectives import JobCollectives
    from stepscope.records.trace_path import CrossRankPath
    from stepscope.records.trace_quality import QualityFact


LeaveOut = Callable[[Path, DataError], None]

FILES_HERE, CLUSTER_FROM_BYTES = 32, 128 << 20
"""More files, with this much text: a killed process would cost too much, and workers take 6 s of CPU time to begin."""

PARALLEL_FROM_BYTES = 16 << 20
SCANNED_FROM_BYTES = 64 << 20
"""Below this much text one process is quicker than starting more: read in full, and for device events alone."""

_PACKED_RATIO = 12
"""Text of a gzipped trace / its size on disk; 8 to 17 on the traces this was built on."""


def text_bytes(files: Iterable[Path]) -> int:
    """About how much JSON text the files hold, unpacked."""
    return sum(f.stat().st_size * (1 if f.suffix == ".json" else _PACKED_RATIO) for f in files)


def _ignore_progress(*_: object) -> None:
    """Stand in where nobody listens."""


@record
class ReadingListener:
    """Who hears what while files are read.

    started: the files. advanced: how far one that is read here has got. done: each one that is finished. meanwhile: called
    once while other processes read, where they do: it may load what the caller needs for the answer. left_out: a file that
    cannot be read, and why; without it, and where no file can be read, the DataError is raised. log: what is lacking; with
    it, workers of this machine read where there is much to read.
    """

    started: Callable[[Sequence[Path]], None] = _ignore_progress
    advanced: Advanced = _ignore_progress
    done: Callable[[Path], None] = _ignore_progress
    meanwhile: Callable[[], None] = _ignore_progress
    left_out: LeaveOut | None = None
    log: Callable[[str], None] | None = None


NOBODY = ReadingListener()

Outcome = tuple[RankPass, ...] | StepscopeError


def analyse_captures(
    paths: str | Path | Iterable[str | Path], wanted: Wanted = EVERY, *, listener: ReadingListener = NOBODY
) -> dict[str, TraceSummary]:
    """Load and analyse every rank's trace under ``paths``, then match the ranks of each capture. The summaries are by the
    captures' names; one capture, as usual, is called "".

    A file that ends every worker of a cluster is left out with a note. Raises DataError as ``load_traces`` does.
    """
    files, skipped = trace_files(paths)
    there = len(files)
    if wanted.sample is not None:
        files = _sampled_files(files, wanted.sample, wanted.ranks)
    listener.started(files)
    notes = [FileNote(rank=None, kind=n.kind, text=n.text) for n in skipped]
    named = {str(paths)} if isinstance(paths, str | Path) else set(map(str, paths))
    if not named.issuperset(map(str, files)):
        listener = replace(listener, left_out=_skips_what_is_none(listener.left_out, notes, named))
    outcomes = (
        _on_cluster(files, wanted, listener, notes)
        if _for_cluster(wanted, listener, files)
        else _read_outcomes(files, wanted, listener)
    )
    passes = _without_joined(_readable_passes(outcomes, listener.left_out), notes)
    by_capture = None if _once_each(passes) else captures(passes)
    # What cannot be told apart is refused below.
    by_capture = _one_window(by_capture or {"": passes}, wanted.window, notes)
    joined = {
        name: combine(
            one_per_rank(group, rank=lambda p: p.facts.rank, path=lambda p: Path(p.facts.file)), notes=tuple(notes)
        )
        for name, group in by_capture.items()
    }
    if wanted.sample is None:
        return joined
    return {
        name: replace(summary, notes=(*summary.notes, *_left_open(summary, there))) for name, summary in joined.items()
    }


def analyse_job(
    paths: str | Path | Iterable[str | Path], wanted: Wanted = EVERY, *, listener: ReadingListener = NOBODY
) -> TraceSummary:
    """Analyse files of one capture as ``analyse_captures`` does. Raises DataError too where there are several."""
    return only_capture(analyse_captures(paths, wanted, listener=listener))


def _without_joined(passes: list[RankPass], notes: list[FileNote]) -> list[RankPass]:
    """Return the passes without files that hold several ranks, where each of these has a file of its own, too."""
    ranks: dict[str, set[int]] = defaultdict(set)
    for rank_pass in passes:
        ranks[rank_pass.facts.file].add(rank_pass.facts.rank)
    own = {rank for together in ranks.values() if len(together) == 1 for rank in together}
    joined = {file for file, together in ranks.items() if len(together) > 1 and together <= own}
    for file in joined:
        text = f"{Path(file).name}: left out: it joins ranks whose own files are here"
        notes.append(FileNote(rank=None, kind="beside", text=text))
    return [rank_pass for rank_pass in passes if rank_pass.facts.file not in joined]


def only_capture(summaries: Mapping[str, TraceSummary]) -> TraceSummary:
    """Return the only capture. Raises DataError where there are several: what is asked for is of one."""
    if len(summaries) == 1:
        return next(iter(summaries.values()))
    first = [Path(p.facts.file).name for p in next(iter(summaries.values())).ranks]
    raise DataError(
        f"{len(summaries)} captures in these files: {', '.join(list(summaries)[:6])}",
        why="files record the same rank; their names or times show different captures",
        fix=f"name the files of one, for example {' '.join(first[:3])}{' ...' if first[3:] else ''}",
    )


def combine(passes: Sequence[RankPass], *, notes: tuple[FileNote, ...] = ()) -> TraceSummary:
    """Put together what the ranks say; ``passes`` ascend by rank."""
    world = next((p.facts.world_size for p in passes if p.facts.world_size is not None), None)
    notes = (*notes, *(FileNote(rank=None, kind="missing", text=text) for text in _job_differences(passes, world)))
    if all(p.partial or p.budget is None for p in passes):
        return TraceSummary(
            world_size=world, ranks=tuple(passes), verdicts=_verdicts_without_device(passes), notes=notes
        )
    from stepscope.traces.activity import verdict_of
    from stepscope.traces.quality import job_quality
    from stepscope.traces.waiting import job_collectives
    from stepscope.traces.waits import waits_of

    communication = [p.communication for p in passes if p.communication is not None]
    collectives = job_collectives(communication) if communication else None
    apart: tuple[QualityFact, ...] = ()
    if collectives is not None and len(communication) > 1:
        from stepscope.traces.captures import begun_apart

        passes, apart = begun_apart(passes, communication, collectives)
    if apart:
        notes = (*notes, *(FileNote(rank=None, kind="dropped", text=fact.text) for fact in apart))
        communication = [p.communication for p in passes if p.communication is not None]
        collectives = job_collectives(communication)
    stragglers = None
    if collectives is not None:
        from stepscope.traces.grid import chains_of, stages_of
        from stepscope.traces.stragglers import find_stragglers

        stragglers = find_stragglers(communication, collectives, stages_of(chains_of(passes, world)))
    path = Unavailable(apart[0].text) if apart else _job_path(passes, collectives)
    bubble = None
    if any(p.stage_waits is not None for p in passes):
        from stepscope.traces.waiting import measured_bubble

        bubble = measured_bubble(passes)
    waits = waits_of(collectives)
    late = {straggler.rank: straggler.cause for straggler in stragglers.stragglers} if stragglers is not None else {}
    return TraceSummary(
        world_size=world,
        ranks=tuple(passes),
        verdicts=(
            *(
                RankVerdict(
                    rank=r,
                    verdict=verdict_of(
                        p.budget,
                        p.idle,
                        waits=waits.get(r),
                        late=late.get(r),
                        unclear=next((fact for fact in p.quality if "classes" in fact.takes), None),
                    ),
                )
                for r, p in ((p.facts.rank, p) for p in passes)
                if p.budget is not None and not p.partial
            ),
            *_verdicts_without_device(passes),
        ),
        notes=notes,
        collectives=collectives,
        stragglers=stragglers,
        path=None if isinstance(path, Unavailable) else path,
        path_unavailable=path.reason if isinstance(path, Unavailable) else None,
        bubble=bubble,
        job_quality=(*apart, *job_quality(passes)),
    )


def _verdicts_without_device(passes: Sequence[RankPass]) -> tuple[RankVerdict, ...]:
    """Return the verdict on ranks whose device was not read: there is none, and why."""
    return tuple(
        RankVerdict(
            rank=p.facts.rank,
            verdict=BudgetVerdict(kind="unknown", text=p.unread, share=None, compute_to_comm_ratio=None),
        )
        for p in passes
        if p.unread is not None
    )


def _job_differences(passes: Sequence[RankPass], world: int | None) -> Iterator[str]:
    """Say what keeps the given traces from being the whole job, side by side."""
    lacking = missing_ranks(passes)[0]
    shown = listed([f"rank {rank}" for rank in lacking], at_most=4)
    if world is not None and world > len(passes):
        yield (
            f"traces of {len(passes)} of {world} ranks, without {shown}: the missing ranks' activity, and whether others "
            "waited for them, is unknown"
        )
    elif world is None and len(passes) > 1 and lacking:
        yield f"no trace of {shown}: whether others waited for {'it' if len(lacking) == 1 else 'them'} is unknown"
    steps = {p.facts.rank: tuple(s.step for s in p.steps) for p in passes if p.steps}
    if len(set(steps.values())) > 1:
        usual = Counter(steps.values()).most_common(1)[0][0]
        odd = [f"rank {rank} {step[0]} to {step[-1]}" for rank, step in steps.items() if step != usual]
        text = f"ranks recorded different steps: most {usual[0]} to {usual[-1]}, {listed(odd, at_most=1)}"
        common = common_steps(passes) or ()
        yield text + (
            f"; figures between ranks rest on the {counted(len(common), 'step')} of all"
            if common
            else "; none is common to all: nothing is said between ranks"
        )


def _job_path(passes: Sequence[RankPass], job: JobCollectives | None) -> CrossRankPath | Unavailable | None:
    """The critical path through all ranks; None when fewer than two ranks were asked for theirs."""
    legs = [p.legs for p in passes if p.legs is not None]
    if len(legs) < 2 or job is None:
        return None
    for p in passes:
        if p.legs is not None and p.communication is not None:
            shown, counted_as = len(p.legs.durations_ns), len(p.communication.collectives)
            if shown != counted_as:
                return Unavailable(
                    f"rank {p.facts.rank} shows {shown} communication events and {counted_as} collectives"
                )
    from stepscope.traces.critical_path import cross_rank_path

    return cross_rank_path(legs, job.instances)


def _read_outcomes(files: Sequence[Path], wanted: Wanted, listener: ReadingListener) -> Iterator[tuple[Path, Outcome]]:
    """Yield what each file gives, in their order; where processes read them, when all are finished."""
    work, quick = _file_reader(files, wanted), wanted.device_only
    if wanted.processes != 1 and text_bytes(files) >= (SCANNED_FROM_BYTES if quick else PARALLEL_FROM_BYTES):
        from stepscope.core.forks import usable_cores

        if not quick:
            import stepscope.traces.full_pass  # noqa: F401 - once, for the processes that are forked from this one
        count = wanted.processes or usable_cores()
        if len(files) == 1:
            work = partial(work, processes=count)
        elif count > 1:
            # By size, so that no process starts a long one last.
            order = sorted(files, key=_file_bytes, reverse=True)
            meanwhile = partial(_import_analysis, listener, quick=quick)
            finished = dict(
                zip(order, _side_by_side(work, order, min(count, len(files)), listener.done, meanwhile), strict=True)
            )
            yield from ((file, finished[file]) for file in files)
            return
    work = partial(work, advanced=listener.advanced)
    for file in files:
        yield file, (outcome := outcome_of(work, file))
        if not isinstance(outcome, StepscopeError):
            listener.done(file)


def _file_reader(files: Sequence[Path], wanted: Wanted) -> partial[tuple[RankPass, ...]]:
    return partial(passes_of, wanted=wanted, names=ranks_by_name(files))


def _skips_what_is_none(left_out: LeaveOut | None, notes: list[FileNote], named: Collection[str]) -> LeaveOut:
    """Make a ``left_out`` that also takes what lies in a folder and is no trace, where only reading it shows that. named:
    files that were named one by one, which must be traces."""

    def leave(file: Path, error: DataError) -> None:
        if isinstance(error, NoTraceError) and str(file) not in named:
            kind = "beside" if hasattr(file, "listed") else "foreign"  # here, what has no events is left out before
            notes.append(FileNote(rank=None, kind=kind, text=f"{file.name}: not a trace: {error.why}"))
        elif left_out is None:
            raise error
        else:
            left_out(file, error)

    return leave


def _for_cluster(wanted: Wanted, listener: ReadingListener, files: Sequence[Path]) -> bool:
    """Return whether a cluster reads the files; the log is told where one should and cannot be had."""
    if wanted.scheduler is not None:
        return True
    much = len(files) > FILES_HERE and text_bytes(files) >= CLUSTER_FROM_BYTES
    if listener.log is None or not much or wanted.processes == 1:
        return False
    from stepscope.traces.cluster import installed

    if not installed():
        from stepscope.core.installing import install_extra

        listener.log(
            f"{len(files)} files are read without dask, so that a process that is killed ends the command; to read them in "
            f"workers that may be lost: {install_extra('cluster')}"
        )
    return installed()


def _on_cluster(
    files: Sequence[Path], wanted: Wanted, listener: ReadingListener, notes: list[FileNote]
) -> Iterator[tuple[Path, Outcome]]:
    """Yield what each file gives; a note says which ended every worker that read them."""
    from stepscope.core.forks import usable_cores
    from stepscope.traces.cluster import NotReadError, read_on_cluster

    outcomes = read_on_cluster(
        _file_reader(files, wanted),
        files,
        scheduler=wanted.scheduler,
        workers=wanted.processes or usable_cores(),
        size_of=_file_bytes,
        done=listener.done,
    )
    gone = {file: error for file, error in outcomes.items() if isinstance(error, NotReadError)}
    if len(gone) == len(files):
        raise next(iter(gone.values()))
    notes += [FileNote(rank=None, kind="missing", text=f"{file.name}: not read: {e.why}") for file, e in gone.items()]
    yield from ((file, outcomes[file]) for file in files if file not in gone)


def _file_bytes(file: Path) -> int:
    return file.stat().st_size


def _import_analysis(listener: ReadingListener, *, quick: bool) -> None:
    """Import what comes after the reading, which takes as long as reading a rank of 1 MB."""
    if not quick:
        import stepscope.traces.activity
        import stepscope.traces.stragglers
        import stepscope.traces.waiting  # noqa: F401
    listener.meanwhile()


def _readable_passes(outcomes: Iterable[tuple[Path, Outcome]], left_out: LeaveOut | None) -> list[RankPass]:
    """Return the passes, files that cannot be read left out. Raises the first DataError where none is left."""
    passes: list[RankPass] = []
    damaged: list[tuple[Path, DataError]] = []
    for file, outcome in outcomes:
        if isinstance(outcome, tuple):
            passes += outcome
        elif left_out is None or not isinstance(outcome, DataError):
            raise outcome
        else:
            damaged.append((file, outcome))
    if damaged and not passes:
        raise damaged[0][1]
    for refused in damaged:
        assert left_out is not None
        left_out(*refused)
    return passes


def _side_by_side(
    work: partial[tuple[RankPass, ...]],
    files: Sequence[Path],
    count: int,
    done: Callable[[Path], None],
    meanwhile: partial[None],
) -> Iterable[Outcome]:
    """Return the outcomes of files that processes read; ``meanwhile`` runs beside them. Raises MissingError where one was
    killed."""
    from stepscope.core.forks import ProcessKilledError, can_fork, map_forked

    if can_fork():
        try:
            return map_forked(work, files, count, done=done, meanwhile=meanwhile)
        except ProcessKilledError as error:
            raise _killed_error() from error
    from concurrent.futures import as_completed
    from concurrent.futures.process import BrokenProcessPool

    from stepscope.core.pool import side_by_side

    try:
        with side_by_side(count) as pool:
            futures = {pool.submit(outcome_of, work, file): file for file in files}
            meanwhile()
            for future in as_completed(futures):
                future.result()
                done(futures[future])
            return [future.result() for future in futures]
    except BrokenProcessPool as error:
        raise _killed_error() from error


def _killed_error() -> MissingError:
    return MissingError(
        "a process that was reading traces was killed",
        why="the machine probably ran out of memory",
        fix="read fewer ranks at a time (--processes 1), or device events alone (--show budget)",
    )


def captures(passes: Sequence[RankPass]) -> dict[str, list[RankPass]] | None:
    """Return the captures by name, each with every rank once, told apart by file names without the rank or by time,
    whichever makes fewer. None where ranks are there twice and neither tells them apart, or one file is a copy of another:
    the same rank, taken at the same time.
    """
    times = [
        (rank_pass.facts.rank, rank_pass.facts.unix_ns) for rank_pass in passes if rank_pass.facts.unix_ns is not None
    ]
    if len(set(times)) < len(times):
        return _by_numbers(passes)
    groupings = [
        groups
        for groups in (_passes_by_name(passes), _passes_by_time(passes))
        if len(groups) > 1 and all(_once_each(group) for group in groups.values())
    ]
    return min(groupings, key=len, default=None) or _by_numbers(passes)


def _by_numbers(passes: Sequence[RankPass]) -> dict[str, list[RankPass]] | None:
    """Tell the files of a rank apart by the times or steps in their names, in that order, the newest of all ranks together;
    None where the names of a rank's files have none, or the same."""
    names = ranks_by_name([Path(p.facts.file) for p in passes])
    of_rank: dict[int, list[tuple[tuple[int, ...], RankPass]]] = defaultdict(list)
    for rank_pass in passes:
        of_rank[rank_pass.facts.rank].append((names[rank_pass.facts.file].when, rank_pass))
    most = max(map(len, of_rank.values()))
    groups: dict[str, list[RankPass]] = {f"window {number + 1}": [] for number in range(most)}
    for files in of_rank.values():
        if len(files) > 1 and (not all(when for when, _ in files) or len({when for when, _ in files}) < len(files)):
            return None
        for place, (_, rank_pass) in enumerate(sorted(files, key=lambda file: file[0])):
            groups[f"window {most - len(files) + place + 1}"].append(rank_pass)
    return {name: sorted(group, key=lambda p: p.facts.rank) for name, group in groups.items()}


def _of_windows(groups: Mapping[str, Sequence[RankPass]]) -> list[str] | None:
    """Return the names of captures that one job took one after the other, the oldest first; None where their files are
    called otherwise than by numbers, as those of different jobs are."""
    called = [{re.sub(r"\d+", "#", name) for name in _passes_by_name(group)} for group in groups.values()]
    if any(names != called[0] for names in called):
        return None
    starts = {name: [p.facts.unix_ns for p in group if p.facts.unix_ns is not None] for name, group in groups.items()}
    timed = all(starts.values())
    return sorted(groups, key=lambda name: (min(starts[name]) if timed else (0, 0), natural(name)))


def _one_window(
    groups: dict[str, list[RankPass]], number: int | None, notes: list[FileNote]
) -> dict[str, list[RankPass]]:
    """Return the window of this number, else the newest of those with most ranks, where the captures are windows of one job;
    a note says what is left out. Raises UsageError."""
    windows = _of_windows(groups) if len(groups) > 1 else list(groups)
    if number is not None and (windows is None or number > len(windows)):
        there = (
            f"{counted(len(groups), 'capture')} of different names"
            if windows is None
            else counted(len(windows), "window")
        )
        raise UsageError(f"--window {number}: there is {there}", fix="leave it out, or name the files of one capture")
    if windows is None or len(windows) == 1:
        return groups
    most = max(len(groups[name]) for name in windows)
    at = number - 1 if number is not None else max(i for i, name in enumerate(windows) if len(groups[name]) == most)
    files = [Path(p.facts.file).name for i, name in enumerate(windows) if i != at for p in groups[name]]
    shown = f"window {at + 1} is shown" + (", the newest" if at + 1 == len(windows) else "")
    text = (
        f"{len(windows)} windows of the same ranks: {shown}; left out: {listed(files, at_most=3)}; "
        "`stepscope trace --window N` shows another"
    )
    notes.append(FileNote(rank=None, kind="window", text=text))
    return {"": groups[windows[at]]}


def _once_each(passes: Iterable[RankPass]) -> bool:
    return max(Counter(p.facts.rank for p in passes).values(), default=0) <= 1


def _passes_by_name(passes: Sequence[RankPass]) -> dict[str, list[RankPass]]:
    """Return the passes of each capture, told apart by the names of files and their folders."""
    files = [Path(rank_pass.facts.file) for rank_pass in passes]
    names = ranks_by_name(files)
    one_place = len(set(map(home, files))) == 1

    def name(rank_pass: RankPass) -> str:
        file = Path(rank_pass.facts.file)
        stem = names[str(file)].stem
        return stem if one_place and stem else f"{home(file).name}/{stem}".rstrip("/")

    return grouped(passes, name)


def _passes_by_time(passes: Sequence[RankPass]) -> dict[str, list[RankPass]]:
    """Traces whose stretches of time overlap are of one capture; none where a time is unknown."""
    timed = [(rank_pass.facts.unix_ns, rank_pass) for rank_pass in passes if rank_pass.facts.unix_ns is not None]
    if len(timed) < len(passes):
        return {}
    groups: list[list[RankPass]] = []
    end = 0
    for (start, stop), rank_pass in sorted(timed, key=lambda item: item[0]):
        if not groups or start >= end:
            groups.append([])
        groups[-1].append(rank_pass)
        end = max(end, stop)
    return {f"capture {i + 1}": group for i, group in enumerate(groups)}


_NAMED = 4
"""Groups that the note names; the rest is a number."""


def _sampled_files(files: Sequence[Path], ranks: Collection[int], stated: Mapping[str, int]) -> list[Path]:
    """Return the files of these ranks, as the user states them, or as their names do: looking into files takes as long as
    reading them. Raises UsageError."""
    names = ranks_by_name(files)
    by_file = {file: stated.get(str(file), stated.get(file.name, names[str(file)].rank)) for file in files}
    present = sorted({rank for rank in by_file.values() if rank is not None})
    if missing := sorted(set(ranks) - set(present)):
        what = f"--ranks: no trace of rank {missing[0]}"
        if silent := [file.name for file, rank in by_file.items() if rank is None]:
            why = f"the names of {counted(len(silent), 'file')} state no rank: {listed(silent, at_most=2)}"
            raise UsageError(what, why=why, fix=f"state them: --rank-of {silent[0]}=N")
        raise UsageError(what, fix=f"there are {listed(list(map(str, present)), at_most=8)}")
    return [file for file, rank in by_file.items() if rank in ranks]


def _left_open(summary: TraceSummary, files: int) -> tuple[FileNote, ...]:
    """Notes on what is unknown as other ranks were not read; ``files``: how many there are."""
    read = [p.facts.rank for p in summary.ranks]
    if len(read) == files:
        return ()
    texts = [
        f"a sample, {counted(len(read), 'rank')} of {files:,} files: unknown are stragglers among the others, what those "
        "wait for, and whether one of these waited for one of them, which counts as transfer"
    ]
    if lacking := _incomplete_groups(summary):
        shown = [f"{name} ({seen:,} of {size:,} ranks)" for name, (seen, size) in lacking.items()]
        texts.append(f"groups that are not complete in the sample: {listed(shown, at_most=_NAMED)}")
    return tuple(FileNote(rank=None, kind="missing", text=text) for text in texts)


def _incomplete_groups(summary: TraceSummary) -> dict[str, tuple[int, int]]:
    """Return by name how many ranks of a group were read, and its size, for groups alone that lack some."""
    seen: dict[tuple[str, object, int], set[int]] = defaultdict(set)
    for rank in summary.ranks:
        for call in rank.communication.collectives if rank.communication is not None else ():
            if (group := call.group) is not None and group.size is not None:
                seen[group.name, group.ranks, group.size].add(rank.facts.rank)
    return {name: (len(ranks), size) for (name, _, size), ranks in seen.items() if len(ranks) < size}

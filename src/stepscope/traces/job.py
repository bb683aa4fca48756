"""All ranks of a job: the per-rank passes mapped over processes, then what the ranks say together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from stepscope.core.errors import DataError
from stepscope.records.trace_summary import FileNote, RankPass, RankVerdict, TraceSummary
from stepscope.traces.findings import findings_of
from stepscope.traces.load import trace_files
from stepscope.traces.rank_pass import Wanted, pass_file
from stepscope.traces.verdict import verdict_of

PARALLEL_FROM_BYTES = 40 << 20
"""Below this much text one process is quicker than starting more."""

_PACKED_RATIO = 12
"""Text of a gzipped trace / its size on disk; 8 to 17 on the traces this was built on."""


def text_bytes(files: Iterable[Path]) -> int:
    """About how much JSON text the files hold, unpacked."""
    return sum(f.stat().st_size * (1 if f.suffix == ".json" else _PACKED_RATIO) for f in files)


def analyse_job(
    paths: Iterable[str | Path],
    *,
    wanted: Wanted,
    ranks: Mapping[str, int] | None = None,
    executor: Executor | None = None,
    done: Callable[[Path], None] | None = None,
    started: Callable[[Sequence[Path]], None] | None = None,
) -> TraceSummary:
    """Load and analyse every rank's trace under ``paths``, then match the ranks.

    ``executor`` maps the files over its workers; without one, processes are started where that pays. ``started``
    is told the files, ``done`` each one as it is finished. Raises DataError as ``load_traces`` does.
    """
    files, skipped = trace_files(paths)
    if started:
        started(files)
    work = partial(pass_file, wanted=wanted, stated=ranks or {}, alone=len(files) == 1)
    passes = _map(work, files, executor, done or (lambda _: None))
    notes = tuple(FileNote(rank=None, kind=n.kind, text=n.text) for n in skipped)
    return combine(_by_rank(passes), notes=notes)


def combine(passes: Sequence[RankPass], *, notes: tuple[FileNote, ...] = ()) -> TraceSummary:
    """What the ranks say together; ``passes`` ascending by rank."""
    world = next((p.facts.world_size for p in passes if p.facts.world_size is not None), None)
    verdicts = tuple(
        RankVerdict(rank=p.facts.rank, verdict=verdict_of(p.budget, p.idle))
        for p in passes
        if p.budget is not None
    )
    summary = TraceSummary(world_size=world, ranks=tuple(passes), verdicts=verdicts, findings=(), notes=notes)
    return findings_of(summary)


def _by_rank(passes: Sequence[RankPass]) -> list[RankPass]:
    seen: dict[int, RankPass] = {}
    for each in passes:
        rank = each.facts.rank
        if rank in seen:
            a, b = Path(seen[rank].facts.file).name, Path(each.facts.file).name
            raise DataError(
                f"rank {rank} twice: {a} and {b}",
                why="two files record the same rank; they are two captures, or one belongs to another job",
                fix=f"name one of them, or state the rank: --rank-of {b}=N",
            )
        seen[rank] = each
    return [seen[rank] for rank in sorted(seen)]


def _map(
    work: Callable[[Path], RankPass],
    files: Sequence[Path],
    executor: Executor | None,
    done: Callable[[Path], None],
) -> list[RankPass]:
    if executor is not None:
        return _submit(executor, work, files, done)
    workers = min(len(os.sched_getaffinity(0)), len(files))
    if workers > 1 and text_bytes(files) >= PARALLEL_FROM_BYTES:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            return _submit(pool, work, files, done)
    passes = []
    for file in files:
        passes.append(work(file))
        done(file)
    return passes


def _submit(
    executor: Executor, work: Callable[[Path], RankPass], files: Sequence[Path], done: Callable[[Path], None]
) -> list[RankPass]:
    """Largest files first, so that no worker starts a long one last."""
    order = sorted(files, key=lambda f: f.stat().st_size, reverse=True)
    futures = {executor.submit(work, file): file for file in order}
    for future in as_completed(futures):
        future.result()
        done(futures[future])
    by_file = {file: future.result() for future, file in futures.items()}
    return [by_file[file] for file in files]

"""Runs a planned matrix: worker groups, failures, the out-of-memory backstop, interruption, results.

Whatever happens to one cell, the others run, and everything finished is on disk before the next one starts.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TypeVar

from stepscope.core.errors import Interrupted, StepscopeError
from stepscope.core.forks import STOP_SIGNALS, stop_signals_raise
from stepscope.core.words import counted
from stepscope.launch import join, torchrun
from stepscope.launch.hosts import world as hosts
from stepscope.launch.hosts.conversation import HostLost
from stepscope.launch.netns import start as netns
from stepscope.launch.supervise import CellOutcome, RunningGroup
from stepscope.launch.torchrun import Launched
from stepscope.matrix import run_folder
from stepscope.matrix.estimate import WorkerGroup, group_cells
from stepscope.matrix.machine import cores_of
from stepscope.matrix.resume import Resume, cells_to_rerun, plan_resume
from stepscope.matrix.work import (
    CellEnded,
    CellMoved,
    DataStarted,
    Event,
    GroupStarted,
    PlannedWork,
    RunRequest,
    RunStarted,
)
from stepscope.records.cell import Cell, CellStatus, GroupSpec, RunRecord
from stepscope.records.network import parse_network
from stepscope.results.runs import baselines_of
from stepscope.store.writer import hold_lock, make_dir, write_record

OnEvent = Callable[[Event], None]


def run_matrix(request: RunRequest, on_event: OnEvent) -> None:
    """Run what is missing. Raises Interrupted after flushing on a signal."""
    layout = request.layout
    make_dir(layout.root)
    with hold_lock(layout.lock):
        run_folder.prepare(
            layout,
            run=_run_record(request),
            specs=tuple(planned.spec for planned in request.cells),
            environment=request.environment,
            force=request.force,
            others=tuple(planned.spec.cell_id for planned in request.others),
        )
        earlier = run_folder.read_statuses(layout, (planned.spec.cell_id for planned in request.cells))
        rerun = cells_to_rerun(request.rerun, request.cells, earlier, lambda: baselines_of(layout))
        untraced = run_folder.untraced(layout, earlier) - rerun if request.measure.profile else frozenset()
        kept = {cell_id: status for cell_id, status in earlier.items() if cell_id not in rerun | untraced}
        run = _Run(request, earlier, on_event, untraced=untraced, rerun=rerun)
        decided = plan_resume(request.cells, kept)
        run.begin(decided)
        with _other_ranks_answered(request), stop_signals_raise("stopped"):
            try:
                run.run(decided)
            except (KeyboardInterrupt, Interrupted) as stop:
                run.interrupt()
                signum = stop.exit_code - 128 if isinstance(stop, Interrupted) else int(signal.SIGINT)
                finished = sum(run.status(cell.spec).status != "interrupted" for cell in request.cells)
                have = "has a result, which is saved" if finished == 1 else "have results, which are saved"
                raise Interrupted(
                    f"interrupted: {finished} of {counted(len(request.cells), 'cell')} {have}",
                    signum=signum,
                    fix=f"run the same command with `-o {layout.root}` to complete what is missing",
                ) from None


def _run_record(request: RunRequest) -> RunRecord:
    """Return the record of a run: its cells, matrix and command."""
    return RunRecord(
        kind=request.kind.name,
        name=request.name,
        matrix=dict(request.matrix),
        cells=tuple(planned.spec.cell_id for planned in request.cells),
        sections=_cells_by_section((*request.cells, *request.others)),
        argv=request.argv,
        data_dir=None if request.data_dir is None else str(request.data_dir),
    )


def _cells_by_section(cells: Iterable[PlannedWork]) -> dict[str, tuple[str, ...]]:
    """Map each section to its cells, in order."""
    sections: dict[str, tuple[str, ...]] = {}
    for planned in cells:
        for name in planned.sections:
            sections[name] = (*sections.get(name, ()), planned.spec.cell_id)
    return sections


class _Run:
    """Statuses so far, and the group being run."""

    def __init__(
        self,
        request: RunRequest,
        earlier: Mapping[str, CellStatus],
        on_event: OnEvent,
        *,
        untraced: frozenset[str],
        rerun: frozenset[str],
    ) -> None:
        """Take the statuses of an earlier run. untraced, rerun: cells of ``earlier`` that are to be measured once more, for
        their traces or as asked."""
        self._request = request
        self._layout = request.layout
        self._on_event = on_event
        self._planned = {p.spec.cell_id: p for p in request.cells}
        self._statuses = dict(earlier)
        self._earlier = dict(earlier)
        self._untraced, self._rerun = untraced, rerun
        self._pending: list[str] = []
        self._groups = sum(1 for _ in self._layout.groups.glob("*"))

    def status(self, cell: Cell) -> CellStatus:
        return self._statuses[cell.cell_id]

    def begin(self, decided: Resume[PlannedWork]) -> None:
        """Tell what will happen, and record what need not run at all."""
        self._pending = [p.spec.cell_id for p in decided.run]
        kept = tuple(self._statuses[p.spec.cell_id] for p in decided.kept)
        specs = tuple(p.spec for p in self._request.cells)
        self._on_event(
            RunStarted(
                run_dir=str(self._layout.root),
                cells=specs,
                kept=kept,
                to_run=len(self._pending),
                remeasured=sum(cell_id in self._untraced for cell_id in self._pending),
                rerun=sum(cell_id in self._rerun for cell_id in self._pending),
            )
        )
        for planned in decided.unsupported:
            self._end(CellStatus(cell_id=planned.spec.cell_id, status="unsupported", reason=planned.unsupported))
        for planned in decided.skipped:
            self._end(CellStatus(cell_id=planned.spec.cell_id, status="skipped", reason=planned.skipped))

    def run(self, decided: Resume[PlannedWork]) -> None:
        """Run the groups one after the other; after a failure, new processes run the rest of a group."""
        request = self._request
        self._prepare_data(decided)
        groups = group_cells(
            (p.spec for p in decided.run),
            usable_cores=lambda cell: cores_of(cell, request.usable_cores, request.hosts),
            isolate=request.isolate,
        )
        for group in groups:
            while waiting := tuple(c for c in group.cells if c.cell_id in self._pending):
                self._groups += 1
                group_id = request.joined or f"{self._groups:03d}-w{group.world_size}-{group.backend}"
                spec = self._group_spec(group, group_id, waiting)
                started = GroupStarted(group_id=spec.group_id, world_size=group.world_size, cells=len(waiting))
                self._on_event(started)
                with RunningGroup(spec, self._layout, start=self._starter(spec, group)) as workers:
                    self._supervise(workers, spec.group_id)
                if request.hosts is not None and (lost := hosts.lost_host(self._layout.group(group_id))) is not None:
                    self.interrupt(f"not begun: {lost.what}")
                    raise self._resumable(lost)
                if request.joined is not None:
                    return self.interrupt("only the launcher can restart the joined world")
        return None

    def _resumable(self, lost: HostLost) -> HostLost:
        """Return the error with how the run is resumed."""
        finished = sum(status.status == "ok" for status in self._statuses.values())
        return HostLost(
            lost.host,
            lost.what,
            why=lost.why,
            fix=f"{lost.fix}; then run the same command with `-o {self._layout.root}`: {finished} of "
            f"{counted(len(self._planned), 'cell')} {'is' if finished == 1 else 'are'} finished and saved there",
        )

    def _prepare_data(self, decided: Resume[PlannedWork]) -> None:
        """End the cells whose data cannot be used; no rank starts for them."""
        unusable = self._request.kind.unusable(
            self._request,
            (planned.spec for planned in decided.run),
            lambda dataset: self._on_event(DataStarted(dataset=dataset)),
        )
        for cell_id, error in unusable.items():
            self._end(
                CellStatus(
                    cell_id=cell_id,
                    status="error",
                    phase="data",
                    reason=error.line,
                    exception=f"{type(error).__name__}: {error.line}",
                    attempt=self._attempt(cell_id),
                )
            )

    def _attempt(self, cell_id: str) -> int:
        earlier = self._earlier.get(cell_id)
        return 1 if earlier is None else earlier.attempt + 1

    def interrupt(self, reason: str = "stopped before it finished") -> None:
        """Mark whatever has no result yet, so that it is named in the table and run next time."""
        for cell_id in list(self._pending):
            spec = self._planned[cell_id].spec
            if cell_id in self._untraced | self._rerun and run_folder.has_samples(self._layout, spec):
                continue  # its turn had not come: the earlier result stands
            self._end(CellStatus(cell_id=cell_id, status="interrupted", reason=reason))

    def _starter(self, spec: GroupSpec, group: WorkerGroup) -> Callable[[], Launched]:
        """Return what starts the ranks of a group: here, on hosts, or as a task of a job."""
        files = self._layout.group(spec.group_id)
        if self._request.joined is not None:
            return partial(join.start_rank_zero, files)
        env = {**self._request.env, **group.env}
        if self._request.hosts is not None:
            return partial(hosts.start, files, self._request.hosts, spec=spec, extra_env=env)
        start = torchrun.start
        if group.network is not None:
            start = partial(netns.start, network=parse_network(group.network))
        return partial(
            start,
            files,
            world_size=group.world_size,
            threads_per_rank=group.threads_per_rank,
            extra_env=env,
        )

    def _supervise(self, workers: RunningGroup, group_id: str) -> None:
        """Watch a group to its end; an interrupt leaves its cells with a status."""
        try:
            self._watch(workers, group_id)
        except (KeyboardInterrupt, Interrupted):
            outcomes = workers.finished()
            if self._request.joined is not None and (blamed := workers.blame()) is not None:
                outcomes.append(blamed)
            for outcome in outcomes:
                self._settle(outcome, group_id)
            raise

    def _watch(self, workers: RunningGroup, group_id: str) -> None:
        """Watch a group: settle cells that ended, and report steps."""
        moved: tuple[str, str, int, int | None] | None = None
        over = False
        while not over:
            ended, over = workers.poll()
            for outcome in ended:
                self._settle(outcome, group_id)
            beat, cell = workers.heartbeat(), workers.current
            if beat is not None and cell is not None and not over:
                position = (cell.cell_id, beat.phase, beat.step, beat.size_bytes)
                if position != moved:
                    moved = position
                    self._on_event(CellMoved(cell=cell, phase=beat.phase, step=beat.step, size_bytes=beat.size_bytes))

    def _settle(self, outcome: CellOutcome, group_id: str) -> None:
        """Write the status of a cell that ended, and skip what needs more memory than one that had none left."""
        cell = outcome.cell
        status = replace(
            outcome.status or self._request.kind.conclude(self._layout, cell),
            wall_ns=outcome.wall_ns,
            group_id=group_id,
            attempt=self._attempt(cell.cell_id),
        )
        self._end(status)
        if status.status in ("oom", "host_oom"):
            self._skip_larger(self._planned[cell.cell_id])

    def _skip_larger(self, failed: PlannedWork) -> None:
        waiting = tuple(self._planned[cell_id] for cell_id in self._pending)
        for cell_id, reason in self._request.kind.larger(failed, waiting).items():
            self._end(CellStatus(cell_id=cell_id, status="skipped", reason=reason))

    def _end(self, status: CellStatus) -> None:
        """Write a cell's status and report it; no signal comes between."""
        with _signals_wait():  # a signal in between would call a finished cell interrupted
            write_record(self._layout.cell(status.cell_id).status, status)
            self._statuses[status.cell_id] = status
            if status.cell_id in self._pending:
                self._pending.remove(status.cell_id)
        self._on_event(CellEnded(cell=self._planned[status.cell_id].spec, status=status))

    def _group_spec(self, group: WorkerGroup, group_id: str, cells: tuple[Cell, ...]) -> GroupSpec:
        """Return the spec of a group of ranks."""
        request = self._request
        return GroupSpec(
            group_id=group_id,
            run_dir=str(self._layout.root.resolve()),
            world_size=group.world_size,
            device=group.device,
            backend=group.backend,
            threads_per_rank=group.threads_per_rank,
            data_dir=None if request.data_dir is None else str(request.data_dir.resolve()),
            cache_dir=str(request.cache_dir),
            tensorboard_dir=None if request.tensorboard_dir is None else str(request.tensorboard_dir.resolve()),
            members=() if request.joined is None else join.gather(self._layout.group(group_id), group.world_size),
            master_port=None if request.joined is None else join.rank_zero_port(os.environ),
            warnings_as_errors=os.environ.get("STEPSCOPE_WARNINGS") == "error",
            **request.kind.group_fields(request, cells),
        )


@contextmanager
def _other_ranks_answered(request: RunRequest) -> Iterator[None]:
    """Answer the other ranks of a joined world, which wait for a spec: when there is nothing to run they get an empty one.

    After an error only those that have come: it must be seen at once.
    """
    if request.joined is None:
        yield
        return
    files = request.layout.group(request.joined)
    make_dir(files.root)
    join.clear(files)
    patience_s = 0.0
    try:
        yield
        patience_s = join.MEET_TIMEOUT_S
    finally:
        if not files.spec.exists():
            _, world_size = join.joined_world(os.environ) or (0, 1)
            members = join.gather(files, world_size, patience_s=patience_s)
            write_record(files.spec, join.nothing_to_do(request.joined, request.layout.root, members))


@contextmanager
def _signals_wait() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, *STOP_SIGNALS})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


T = TypeVar("T")

_SHARE = 20
"""One part in so many of the time may go into renewing derived files: many cells make them long."""


def run_to_the_end(
    request: RunRequest, on_event: OnEvent, *, renew: Callable[[], object], finish: Callable[[], T]
) -> tuple[T, Interrupted | HostLost | None]:
    """Run ``request``; return what ``finish`` returns, and what stopped the run, for the caller to raise again.

    renew: writes what follows from the run folder; called as cells end. finish: writes everything; called once the run
    is over, and again if a stop signal comes meanwhile: the launcher of a joined world sends one when a rank fails.
    """
    renewed_until = 0.0

    def heard(event: Event) -> None:
        """Report an event; after a cell ended, renew the report where that takes little time."""
        nonlocal renewed_until
        on_event(event)
        begun = time.monotonic()
        if isinstance(event, CellEnded) and begun >= renewed_until:
            with suppress(StepscopeError):  # ``finish`` says it, when the cells have run
                renew()
            ended = time.monotonic()
            renewed_until = ended + _SHARE * (ended - begun)

    try:
        with stop_signals_raise("interrupted; what was measured is saved"):
            run_matrix(request, heard)
            return finish(), None
    except (Interrupted, HostLost) as stop:
        return finish(), stop

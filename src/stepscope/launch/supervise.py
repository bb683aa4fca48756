"""Watching one worker group: which cell it is in, which are finished, whether it is alive and in time.

Everything is read from files that ranks write; nothing is sent to them. A class because it owns a process and deadlines.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from stepscope.core.dataclass import record
from stepscope.core.errors import DataError
from stepscope.launch import torchrun
from stepscope.launch.ends.cell import calls_in, cell_evidence, cell_status, exit_codes, first_seen
from stepscope.records.cell import Cell, CellSpec, CellStatus, GroupSpec
from stepscope.records.profile import Deadline
from stepscope.records.samples import Heartbeat, RankError, RankSummary
from stepscope.results.ends.judge import judge
from stepscope.store.layout import RunLayout
from stepscope.store.reader import rank_of, read_if_there, read_record
from stepscope.store.writer import write_record

STARTUP_ALLOWANCE_NS = 180_000_000_000
POLL_S = 0.1
BLAME_S = 3.0
"""How long a rank that failed by itself has to say so."""
STDERR_TAIL_CHARS = 4000
ERROR_GRACE_NS = 5_000_000_000
"""Time from a rank's own error to the end of its group, in which the others say theirs (any out-of-memory wins)."""


@record
class CellOutcome:
    """How one cell of an attempt ended. ``status`` is None when every rank finished it."""

    cell: Cell
    wall_ns: int
    status: CellStatus | None


class RunningGroup:
    """One started worker group. Use as a context manager: leaving it ends every process it started."""

    def __init__(
        self,
        spec: GroupSpec,
        layout: RunLayout,
        *,
        start: Callable[[], torchrun.Launched],
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """Write ``spec``, then start the group. start: begins the processes that read ``spec``."""
        self._spec = spec
        self._layout = layout
        self._files = layout.group(spec.group_id)
        self._now = now
        self._waiting: list[Cell] = list(spec.work)
        for cell in spec.work:
            for path in layout.cell(cell.cell_id).rank_files():
                path.unlink(missing_ok=True)
        write_record(self._files.spec, spec)
        self._spent: dict[str, int] = {}
        self._charged_at = now()
        self._deadline = self._charged_at + STARTUP_ALLOWANCE_NS + spec.measure.timeout_ns
        self._current: Cell | None = None
        self._position: tuple[str, int, int | None] | None = None
        self._doomed_at: int | None = None
        self._launched = start()

    def __enter__(self) -> RunningGroup:
        return self

    def __exit__(self, *exception: object) -> None:
        torchrun.stop(self._launched)

    @property
    def current(self) -> Cell | None:
        """The cell that ranks are in; None while the group starts."""
        return self._current

    @property
    def waiting(self) -> tuple[Cell, ...]:
        """Cells without an outcome, in order."""
        return tuple(self._waiting)

    def heartbeat(self) -> Heartbeat | None:
        """Return rank 0's last heartbeat about the current cell."""
        if self._current is None:
            return None
        return _read_heartbeat(self._layout.cell(self._current.cell_id).heartbeat(0))

    def poll(self) -> tuple[list[CellOutcome], bool]:
        """Return (cells that ended since the last call, whether the group is over). Waits at most one poll interval."""
        ended = self.finished()
        self._notice_current()
        if ended:
            return ended, False
        if self._launched.process.poll() is not None:
            ended += self.finished()
            if self._waiting:
                ended.append(self._failed())
            return ended, True
        if not self._waiting:
            return ended, self._wait_for_exit()
        if self._is_doomed():
            torchrun.stop(self._launched)
            ended.append(self._failed())
            return ended, True
        if self._now() > self._deadline:
            # The ranks' own clocks say who stopped first; ask before they are gone.
            suspect, now_ns = self._suspect(), time.time_ns()
            heartbeats = self._heartbeats(suspect)
            torchrun.stop(self._launched)
            ended.append(self._failed(heartbeats=heartbeats, deadline=self._deadline_of(suspect, now_ns)))
            return ended, True
        time.sleep(POLL_S)
        return ended, False

    def _is_doomed(self) -> bool:
        """Whether a rank failed by itself a while ago: its peers may wait for it, and so must nobody else."""
        if self._doomed_at is None:
            # Looked at ten times a second: only where ranks are, not in every cell that waits.
            cells = {c.cell_id: c for c in (self._waiting[0], self._current) if c is not None}
            if any(_is_own(error) for cell in cells.values() for error in self._errors(cell)):
                self._doomed_at = self._now()
        return self._doomed_at is not None and self._now() - self._doomed_at > ERROR_GRACE_NS

    def _deadline_of(self, cell: Cell, now_ns: int) -> Deadline:
        """Return the deadline of a cell, as its heartbeat is judged by."""
        warmup, timed = self._spec.measure.warmup_steps, cell.steps if isinstance(cell, CellSpec) else None
        return Deadline(
            timeout_ns=self._spec.measure.timeout_ns,
            now_ns=now_ns,
            total_steps=warmup + timed if isinstance(timed, int) and warmup is not None else None,
        )

    def _wait_for_exit(self) -> bool:
        """Wait for the ranks, which only have to say goodbye as all cells are in; one that cannot is ended."""
        limit = time.monotonic() + torchrun.GRACE_S
        while self._launched.process.poll() is None and time.monotonic() < limit:
            time.sleep(POLL_S / 2)
        return True

    def finished(self) -> list[CellOutcome]:
        """Return the cells that every rank has finished since the last call."""
        ended = []
        while self._waiting and self._all_summaries(self._waiting[0]):
            cell = self._waiting.pop(0)
            ended.append(CellOutcome(cell=cell, wall_ns=self._wall(cell), status=None))
            self._deadline = self._now() + self._spec.measure.timeout_ns
        return ended

    def blame(self) -> CellOutcome | None:
        """Return the outcome of the running cell if a rank says, within ``BLAME_S``, that it failed by itself; else None.

        For a world that its launcher tears down: the signal can arrive here before the failing rank's last words.
        """
        limit = time.monotonic() + BLAME_S
        while self._waiting:
            cell = self._suspect()
            if any(_is_own(error) for error in self._errors(cell)):
                return self._failed()
            if time.monotonic() > limit:
                return None
            time.sleep(POLL_S)
        return None

    def _wall(self, cell: Cell) -> int:
        """Return the time that ranks have spent in ``cell`` so far, all rounds."""
        self._charge()
        return self._spent.get(cell.cell_id, 0)

    def _charge(self) -> None:
        now = self._now()
        if self._current is not None:  # start-up is no cell's time
            key = self._current.cell_id
            self._spent[key] = self._spent.get(key, 0) + now - self._charged_at
        self._charged_at = now

    def _all_summaries(self, cell: Cell) -> bool:
        files = self._layout.cell(cell.cell_id)
        return all(files.summary(rank).exists() for rank in range(self._spec.world_size))

    def _notice_current(self) -> None:
        """Take as the current cell the one with the newest heartbeat."""
        newest, newest_time = self._current, 0
        for cell in self._waiting:
            beat = self._layout.cell(cell.cell_id).heartbeat(0)
            try:
                stamp = beat.stat().st_mtime_ns
            except OSError:
                continue
            if stamp > newest_time:
                newest, newest_time = cell, stamp
        if newest is not None and newest is not self._current:
            self._charge()
            self._current, self._position = newest, None
            self._deadline = self._now() + self._spec.measure.timeout_ns
        if self._spec.comm_cells:
            self._notice_size()

    def _notice_size(self) -> None:
        """Begin the deadline anew whenever rank 0 has moved on: that of a sweep is one size's."""
        beat = self.heartbeat()
        position = None if beat is None else (beat.phase, beat.step, beat.size_bytes)
        if position != self._position:
            self._position = position
            self._deadline = self._now() + self._spec.measure.timeout_ns

    def _suspect(self) -> Cell:
        """Return the cell that was running: the earliest that some rank was last seen in."""
        seen: dict[int, tuple[int, int]] = {}
        for index, cell in enumerate(self._waiting):
            for path in self._layout.cell(cell.cell_id).root.glob("heartbeat-*"):
                stamp = path.stat().st_mtime_ns
                seen[rank_of(path)] = max(seen.get(rank_of(path), (0, 0)), (stamp, index))
        return self._waiting[min((index for _, index in seen.values()), default=0)]

    def _heartbeats(self, cell: Cell) -> list[Heartbeat]:
        """Return the last heartbeat of each rank: about this cell, or about start-up when it never got here."""
        beats = {}
        for root in (self._files.root, self._layout.cell(cell.cell_id).root):
            for path in sorted(root.glob("heartbeat-*")):
                if (beat := _read_heartbeat(path)) is not None:
                    beats[beat.rank] = beat
        return list(beats.values())

    def _failed(self, *, heartbeats: list[Heartbeat] | None = None, deadline: Deadline | None = None) -> CellOutcome:
        """Return the outcome of the suspected cell, with what its ranks left."""
        cell = self._suspect()
        files = self._layout.cell(cell.cell_id)
        beats = self._heartbeats(cell) if heartbeats is None else heartbeats
        finished = frozenset(rank_of(p) for p in files.root.glob("rank-*.json"))
        log = self._files.launcher_log.read_text(errors="replace")
        codes = exit_codes(log)
        evidence = cell_evidence(
            errors=self._errors(cell),
            heartbeats=beats,
            codes=codes,
            finished=finished,
            world_size=self._spec.world_size,
            deadline=deadline,
            seen_first=first_seen(log),
            last_words=self._last_words(),
            calls=calls_in(files, self._spec.world_size),
        )
        status = cell_status(judge(evidence), cell.cell_id)
        self._waiting.remove(cell)
        status = replace(
            status,
            stderr_tail=self._stderr_tail(status.failing_rank),
            exit_codes={str(rank): code for rank, code in codes.items()} or None,
        )
        return CellOutcome(cell=cell, wall_ns=self._wall(cell), status=status)

    def _errors(self, cell: Cell) -> list[RankError]:
        """Return what ranks said of their end: in this cell, or before they reached any."""
        roots = (self._layout.cell(cell.cell_id).root, self._files.root)
        errors = (read_record(path, RankError) for root in roots for path in sorted(root.glob("error-*.json")))
        return [error for error in errors if error.cell_id in (None, cell.cell_id)]

    def _stderr_tail(self, rank: int | None) -> str | None:
        """Return the end of what the failing rank wrote to stderr, or the launcher's own log when it wrote nothing."""
        text = "" if rank is None else self._stderr(rank)
        text = text or self._files.launcher_log.read_text(errors="replace").strip()
        return text[-STDERR_TAIL_CHARS:] or None

    def _stderr(self, rank: int) -> str:
        logs = sorted(self._files.rank_logs.glob(f"*/attempt_*/{rank}/stderr.log"))
        return logs[-1].read_text(errors="replace").strip() if logs else ""

    def _last_words(self) -> dict[int, str]:
        """Return the last line of stderr of every rank that wrote any."""
        texts = {rank: self._stderr(rank) for rank in range(self._spec.world_size)}
        return {rank: text.splitlines()[-1].strip() for rank, text in texts.items() if text}


def _is_own(error: RankError) -> bool:
    """Whether the rank failed by itself; False where it only noticed another one's end, or was stopped."""
    return error.kind not in ("victim", "terminated")


def summaries(layout: RunLayout, cell: Cell) -> list[RankSummary]:
    """Return the final records of all ranks of a finished cell."""
    files = layout.cell(cell.cell_id)
    return [read_record(files.summary(rank), RankSummary) for rank in range(cell.world_size)]


def _read_heartbeat(path: Path) -> Heartbeat | None:
    """Read a heartbeat, which is replaced while it is read about: damage only means "no news"."""
    with suppress(DataError):
        return read_if_there(path, Heartbeat)
    return None

"""What a user sees while a matrix runs, on stderr: one live table on a terminal, one line per change elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import TYPE_CHECKING, TypeVar

from stepscope.cli.console import OutputError, ReaderGone, err
from stepscope.core.units import format_duration, format_size
from stepscope.core.words import counted
from stepscope.matrix.run_folder import stopped_by_the_disk
from stepscope.matrix.runner import run_to_the_end
from stepscope.matrix.work import CellEnded, CellMoved, DataStarted, Event, GroupStarted, RunRequest, RunStarted
from stepscope.records.cell import CellSpec
from stepscope.records.comm import CommSpec
from stepscope.report.names import sweep_labels
from stepscope.results.labels import cell_labels
from stepscope.store.writer import WriteError

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from stepscope.records.cell import Cell, CellStatus

T = TypeVar("T")

HEARTBEAT_S = 60.0
STATUS_STYLE = {
    "ok": "green", "running": "cyan", "waiting": "dim", "unsupported": "dim", "skipped": "dim",
    "interrupted": "yellow",
}  # fmt: skip


def progress() -> Progress:
    """Return the way of showing progress that suits stderr."""
    return LiveProgress() if err().is_terminal else LineProgress()


def run_and_show(
    request: RunRequest,
    *,
    renew: Callable[[], object],
    finish: Callable[[], T],
    show: Callable[[T], object] | None,
    saved: str,
    draw: Callable[[T], object] | None = None,
) -> T:
    """Run with progress on stderr and show what ``finish`` returns (None: nothing); then raise what stopped the run.

    saved: where the results are, for the user whose stdout takes no more. draw: charts, of a run that was not stopped.
    """
    try:
        with progress() as watching:
            finished, stopped = run_to_the_end(request, watching, renew=renew, finish=finish)
        if draw is not None and not stopped:
            draw(finished)
        # What stopped the run may have taken the terminal with it.
        with suppress(OutputError, ReaderGone) if stopped else nullcontext():
            if show is not None:
                show(finished)
    except WriteError as error:
        raise stopped_by_the_disk(request.layout, error) from error
    except OutputError as error:
        raise OutputError(error.what, why=error.why, fix=f"the results are saved: {saved}") from error
    if stopped:
        raise stopped
    return finished


class Progress(AbstractContextManager["Progress"]):
    """Receives the events of one run."""

    def __call__(self, event: Event) -> None:
        raise NotImplementedError

    def __exit__(self, *exception: object) -> None:
        return None


def _labels(event: RunStarted) -> dict[str, str]:
    """Return cell id -> ``mlp small, ddp bucket_cap_mb=1, 2 ranks, fp32`` or ``all_reduce fp32, 2 ranks``, no two alike."""
    training = [cell for cell in event.cells if isinstance(cell, CellSpec)]
    sweeps = [cell for cell in event.cells if isinstance(cell, CommSpec)]
    texts = [label.text for label in cell_labels(training)] + list(sweep_labels(sweeps))
    ids = [cell.cell_id for cell in training] + [cell.cell_id for cell in sweeps]
    return dict(zip(ids, texts, strict=True))


def _to_do(event: RunStarted) -> str:
    """Write ``5 cells to run, 4 kept from before``, and why any is measured again."""
    kept = f", {len(event.kept)} kept from before" if event.kept else ""
    again = "".join(f"; {text}" for text in _again(event))
    return f"run folder {event.run_dir}: {counted(event.to_run, 'cell')} to run{kept}{again}"


def _again(event: RunStarted) -> list[str]:
    """Write ``2 cells measured again: they have no trace``, ``1 cell measured again as asked with --rerun``."""
    have = "it has" if event.remeasured == 1 else "they have"
    untraced = f"{counted(event.remeasured, 'cell')} measured again: {have} no trace"
    asked = f"{counted(event.rerun, 'cell')} measured again, as --rerun asks"
    return [text for text, number in ((untraced, event.remeasured), (asked, event.rerun)) if number]


def _where(event: CellMoved) -> str:
    """Write ``measure``, or ``measure 4 MiB`` in a sweep."""
    return event.phase if not event.size_bytes else f"{event.phase} {format_size(event.size_bytes)}"


def _time_left(started: float, done: int, total: int) -> str:
    """Write ``about 40 s left``: the cells to come as long as those so far; empty before the first and after the last."""
    if not 0 < done < total:
        return ""
    return f"about {format_duration((time.monotonic() - started) / done * (total - done) * 1e9)} left"


class LineProgress(Progress):
    """Prints one line per state change, and a sign of life a minute. Never a carriage return."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._spoke = self._started
        self._announced: set[tuple[str, str]] = set()
        self._labels: dict[str, str] = {}
        self._total = 0
        self._done = 0
        self._begun: set[str] = set()
        self._never_begun = 0

    def __exit__(self, *exception: object) -> None:
        if self._never_begun:
            self._say(f"{counted(self._never_begun, 'cell')} not begun")

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._total = event.to_run
            self._labels = _labels(event)
            self._say(_to_do(event))
        elif isinstance(event, DataStarted):
            self._say(f"preparing the data: {event.dataset}")
        elif isinstance(event, GroupStarted):
            ranks, cells = counted(event.world_size, "rank"), counted(event.cells, "cell")
            self._say(f"starting {ranks} for {cells} ({event.group_id})")
        elif isinstance(event, CellMoved):
            self._moved(event)
        else:
            self._ended(event.cell, event.status)

    def _moved(self, event: CellMoved) -> None:
        self._begun.add(event.cell.cell_id)
        phase = (event.cell.cell_id, event.phase)
        if event.phase in ("warmup", "measure", "profile") and phase not in self._announced:
            self._announced.add(phase)
            self._say(f"{self._labels[event.cell.cell_id]}: {event.phase}")
        elif time.monotonic() - self._spoke >= HEARTBEAT_S:
            self._say(f"{self._labels[event.cell.cell_id]}: {_where(event)}, step {event.step}")

    def _ended(self, cell: Cell, status: CellStatus) -> None:
        stopped = status.status == "interrupted"
        if stopped and cell.cell_id not in self._begun:
            self._never_begun += 1
            return
        if status.status != "unsupported":
            self._done += 1
        took = "" if status.wall_ns is None else f" in {format_duration(status.wall_ns)}"
        reason = "" if status.reason is None else f": {status.reason}"
        left = "" if stopped else _time_left(self._started, self._done, self._total)
        left = f" ({left})" if left else ""
        what = f"{self._labels[cell.cell_id]}: {status.status}{took}{reason}"
        self._say(f"[{self._done}/{self._total}] {what}{left}")

    def _say(self, text: str) -> None:
        self._spoke = time.monotonic()
        elapsed = format_duration((self._spoke - self._started) * 1e9)
        err().print(f"{elapsed:>9}  {text}", markup=False, soft_wrap=True)


class LiveProgress(Progress):
    """Shows a table of all cells, redrawn in place."""

    def __init__(self) -> None:
        from rich.live import Live

        self._cells: list[Cell] = []
        self._labels: dict[str, str] = {}
        self._state: dict[str, tuple[str, str]] = {}
        self._kept = 0
        self._live: Live = Live(console=err(), refresh_per_second=4, transient=True)
        self._started = time.monotonic()

    def __enter__(self) -> LiveProgress:
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.stop()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RunStarted):
            self._cells = list(event.cells)
            self._labels = _labels(event)
            for text in _again(event):
                self._live.console.print(text)
            self._kept = len(event.kept)
            self._state = {c.cell_id: ("waiting", "") for c in event.cells}
            for kept in event.kept:
                self._state[kept.cell_id] = (kept.status, "from an earlier run")
        elif isinstance(event, CellMoved):
            step = f", step {event.step}" if event.step else ""
            self._state[event.cell.cell_id] = ("running", f"{_where(event)}{step}")
        elif isinstance(event, CellEnded):
            took = "" if event.status.wall_ns is None else format_duration(event.status.wall_ns)
            self._state[event.cell.cell_id] = (event.status.status, event.status.reason or took)
        self._live.update(self._table())

    def _table(self) -> Table:
        """Return the table of every cell when they fit the terminal, else of those around the running one."""
        from rich.table import Table
        from rich.text import Text

        done = sum(state not in ("waiting", "running") for state, _ in self._state.values())
        elapsed = format_duration((time.monotonic() - self._started) * 1e9)
        table = Table(
            title=f"{done}/{counted(len(self._cells), 'cell')}, {elapsed}{self._left(done)}",
            box=None,
            title_justify="left",
            expand=False,
        )
        table.add_column("cell", no_wrap=True)
        table.add_column("status", no_wrap=True)
        table.add_column("")  # gives way first where the terminal is narrow
        for cell in self._visible():
            state, detail = self._state[cell.cell_id]
            style = STATUS_STYLE.get(state, "red")
            table.add_row(
                self._labels[cell.cell_id],
                Text(state, style=style),
                Text(detail, style="dim", no_wrap=True, overflow="ellipsis"),
            )
        return table

    def _left(self, done: int) -> str:
        left = _time_left(self._started, done - self._kept, len(self._cells) - self._kept)
        return f", {left}" if left else ""

    def _visible(self) -> list[Cell]:
        room = max(5, err().size.height - 4)
        if len(self._cells) <= room:
            return self._cells
        running = [i for i, c in enumerate(self._cells) if self._state[c.cell_id][0] == "running"]
        middle = running[0] if running else 0
        first = min(max(0, middle - room // 2), len(self._cells) - room)
        return self._cells[first : first + room]

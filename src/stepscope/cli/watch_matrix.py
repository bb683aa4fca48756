"""What ``stepscope watch`` shows of a run folder of `bench` or `comm`: how far its cells are, and where each rank is."""

from __future__ import annotations

import fcntl
import os
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Literal

from stepscope.cli.command import require_only
from stepscope.cli.console import out, print_document
from stepscope.cli.progress import STATUS_STYLE
from stepscope.core.dataclass import record
from stepscope.core.units import format_duration, format_size
from stepscope.core.words import counted, listed
from stepscope.records.cell import CellSpec, CellStatus, RunRecord
from stepscope.records.codec import headed, plain
from stepscope.records.comm import CommSpec
from stepscope.records.samples import Heartbeat
from stepscope.store.layout import RunLayout
from stepscope.store.reader import read_if_there, read_record

if TYPE_CHECKING:
    from rich.console import Group

    from stepscope.cli.commands.watch import Watch

ENDED = 6
"""So many cells are shown, the last ones to end."""


@record
class MatrixSeen:
    """A run folder at one moment. state: ``stopped``: cells are left, and no command works on them. statuses: of cells that
    have ended, in that order. cell: where ranks are; None: in none, or in start-up. labels: by cell."""

    kind: str
    name: str
    state: Literal["running", "stopped", "ended"]
    cells: tuple[str, ...]
    statuses: tuple[CellStatus, ...]
    cell: str | None
    ranks: tuple[Heartbeat, ...]
    labels: dict[str, str]


def run(layout: RunLayout, options: Watch) -> int:
    """Look, and show, until no command works on the folder; 0. Raises UsageError, DataError."""
    require_only(options, "the run folder of a matrix", {"run", "every", "once", "json"})
    if options.json:
        print_document(document(layout))
        return 0
    live = out().is_terminal and not options.once
    try:
        while True:
            seen = look(layout)
            if live:
                out().clear()
            out().print(screen(seen))
            if not live or seen.state != "running":
                return 0
            time.sleep(options.every)
    except KeyboardInterrupt:
        return 0


def look(layout: RunLayout) -> MatrixSeen:
    """Return the run as it is now. Raises DataError for a damaged record."""
    record = read_record(layout.run, RunRecord)
    ended = [(path.stat().st_mtime_ns, cell) for cell in record.cells if (path := layout.cell(cell).status).is_file()]
    statuses = tuple(read_record(layout.cell(cell).status, CellStatus) for _, cell in sorted(ended))
    left = set(record.cells) - {status.cell_id for status in statuses}
    busy = _in_use(layout)
    beats = _latest(layout, left) if busy else ()
    return MatrixSeen(
        kind=record.kind,
        name=record.name,
        state="running" if busy else "stopped" if left else "ended",
        cells=record.cells,
        statuses=statuses,
        cell=next((beat.cell_id for beat in beats), None),
        ranks=beats,
        labels=_labels(layout, record),
    )


def _in_use(layout: RunLayout) -> bool:
    """Return whether a command works on the folder: it holds the lock, if this host sees that."""
    try:
        handle = os.open(layout.lock, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


def _latest(layout: RunLayout, cells: set[str]) -> tuple[Heartbeat, ...]:
    """Return the heartbeats of the cell that ranks were seen in last."""
    by_cell: dict[str, list[Heartbeat]] = {}
    for cell in cells:
        paths = sorted(layout.cell(cell).root.glob("heartbeat-*"))
        by_cell[cell] = [beat for path in paths if (beat := read_if_there(path, Heartbeat)) is not None]
    return tuple(max(by_cell.values(), key=lambda beats: max((b.time_ns for b in beats), default=0), default=()))


def _labels(layout: RunLayout, record: RunRecord) -> dict[str, str]:
    from stepscope.report.names import sweep_labels
    from stepscope.results.labels import cell_labels

    labels = {cell: cell for cell in record.cells}
    paths = [path for cell in record.cells if (path := layout.cell(cell).spec).is_file()]
    if record.kind == "comm":
        sweeps = [read_record(path, CommSpec) for path in paths]
        labels |= dict(zip([sweep.cell_id for sweep in sweeps], sweep_labels(sweeps), strict=True))
    else:
        cells = [read_record(path, CellSpec) for path in paths]
        labels |= {cell.cell_id: label.text for cell, label in zip(cells, cell_labels(cells), strict=True)}
    return labels


def state_line(seen: MatrixSeen) -> str:
    """Write ``quick: bench, running; 3 of 10 cells have ended: 2 ok, 1 oom``."""
    count = Counter(status.status for status in seen.statuses)
    how = f": {listed([f'{number} {status}' for status, number in count.items()])}" if count else ""
    return (
        f"{seen.name}: {seen.kind}, {seen.state}; {len(seen.statuses)} of {counted(len(seen.cells), 'cell')} ended{how}"
    )


def screen(seen: MatrixSeen) -> Group:
    """Show how far the run is, the cells that ended last, and the ranks of the one that is measured."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for status in seen.statuses[-ENDED:]:
        detail = status.reason or ("" if status.wall_ns is None else format_duration(status.wall_ns))
        style = STATUS_STYLE.get(status.status, "red")
        table.add_row(seen.labels[status.cell_id], Text(status.status, style=style), Text(detail, style="dim"))
    parts: list[Any] = [Text(state_line(seen)), table]
    if seen.cell is not None:
        ranks = Table("rank", "host", "in", "step", "since", box=None, padding=(0, 2, 0, 0))
        for beat in seen.ranks:
            since = format_duration(max(0, time.time_ns() - beat.moved_ns)) if beat.moved_ns else ""
            ranks.add_row(str(beat.rank), beat.host, _where(beat), f"{beat.step:,}", since)
        parts += [Text(f"now: {seen.labels[seen.cell]}", style="cyan"), ranks]
    return Group(*parts)


def _where(beat: Heartbeat) -> str:
    return beat.phase if not beat.size_bytes else f"{beat.phase} {format_size(beat.size_bytes)}"


def document(layout: RunLayout) -> dict[str, Any]:
    """Return one look as a document."""
    seen = look(layout)
    return {**headed("watch_matrix/1"), "run": str(layout.root), **plain(seen)}

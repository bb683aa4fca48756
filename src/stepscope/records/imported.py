"""What an importer makes of a file or folder that another tool wrote."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from stepscope.core.dataclass import dataclass
from stepscope.records.comm import CommRow
from stepscope.records.flight import FlightDump, WatchdogTimeout
from stepscope.records.memory_snapshot import MemorySnapshot
from stepscope.records.nccl_debug import NcclDebug
from stepscope.records.training import Scaling, TrainingRun


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Facts that files leave open and the user states. world_size: run's name (or a part that no other has) -> ranks.

    columns: a column of a table, or a logged figure -> the name to read it under (``tok_s`` -> ``tokens_per_s``), ``-`` to
    leave it out.
    """

    world_size: Mapping[str, int] = field(default_factory=dict)
    scaling: Scaling | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A file of a folder that was not read, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Everything that one source holds, in our records. format: the importer's key. path: as given.

    comm_rows: measured collectives; imported times are means over iterations (``time_ns_mean``), see ``notes``.
    topology: text of ``nvidia-smi topo -m``. hardware: what it ran on as far as the file says.
    notes: what was repaired, dropped or is doubtful. remarks: how the figures were taken, where all was read.
    left_out: files of the folder not read. columns: those whose meaning the user may state; None: it has none.
    """

    format: str
    path: str
    runs: tuple[TrainingRun, ...] = ()
    comm_rows: tuple[CommRow, ...] = ()
    nccl: NcclDebug | None = None
    flight: tuple[FlightDump, ...] = ()
    watchdog: tuple[WatchdogTimeout, ...] = ()
    memory: tuple[MemorySnapshot, ...] = ()
    topology: str | None = None
    hardware: str | None = None
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    columns: tuple[str, ...] | None = None

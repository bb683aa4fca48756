"""What an importer makes of a file or folder that another tool wrote, the CUDA allocator's snapshot among them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field
from pathlib import PurePath

from stepscope.core.dataclass import record
from stepscope.records.comm import Arrivals, CommRow
from stepscope.records.nccl import FlightDump, NcclDebug
from stepscope.records.nouns import Scaling
from stepscope.records.training import TrainingRun

PARAMETER, GRADIENT, OPTIMIZER = "parameters", "gradients", "optimizer"
ACTIVATION, TEMPORARY, UNKNOWN = "activations", "temporary", "unknown"
KINDS = (PARAMETER, GRADIENT, OPTIMIZER, ACTIVATION, TEMPORARY, UNKNOWN)
"""What a block was for. Buffers count as parameters, DDP's buckets as gradients; unknown: allocated before the history, or
kept by the script for longer than a step."""


@record
class MemoryHolder:
    """Bytes of one kind that live blocks hold, by the place in the code that asked for them, or by module.

    where: innermost Python frame outside torch, ``file:line function``; or the module's name, or where it was called.
    """

    where: str
    size_bytes: int
    blocks: int
    kind: str = UNKNOWN


@record
class MemoryOverTime:
    """Requested bytes by kind at the highest moment of each slice of the history, at most a few hundred.

    times_ns: from the first event on; None where events have no times. events: events before each moment.
    """

    times_ns: tuple[int, ...] | None
    events: tuple[int, ...]
    bytes_by_kind: tuple[tuple[str, tuple[int, ...]], ...]


@record
class MemorySnapshot:
    """One device's allocator. segment_bytes: reserved from the driver. allocated_bytes: in live blocks, as rounded up by
    the allocator; requested_bytes: what they were asked for. active_bytes: live and freed blocks that a stream still uses.
    inactive_split_bytes: free blocks inside segments that are partly in use, expandable segments left out: what
    fragmentation cannot give back. largest_free_bytes: the largest request that the pool serves without asking the driver.

    peak_*: from the recorded history, None where none was recorded: peak_requested_bytes: most bytes that live tensors asked
    for at one moment; peak_reserved_bytes: most that was reserved. history_complete: the history begins with an empty pool;
    False: it begins later, and an earlier peak is not known. history_ns: from its first to its last event.
    capacity_bytes: of the device, where the file says (an out-of-memory event tells what the driver had left).
    events: recorded allocator actions. oom_events: requests that failed; oom_request_bytes, oom_driver_free_bytes: the last
    one's size and what the driver still had. driver_allocations, driver_frees: segments got from and given back to the
    driver. retries: times that cached segments were given back directly before a new one was asked for: an allocation that
    did not fit, or torch.cuda.empty_cache(). late_*: in the second half of the recorded requests, where a training loop has
    long settled; late_allocations: requests there.
    holders: at the time of the snapshot, by line; peak_holders, peak_modules: at the recorded peak, by line and by module.
    Largest first; the largest ones only. kinds, peak_kinds: all requested bytes by kind; they add up to requested_bytes and
    peak_requested_bytes. named: the snapshot says itself which blocks are parameters, gradients and optimizer state.
    rank, step: of the job, where `stepscope profile --memory` or `run --memory` took the snapshot; step: steps done.
    """

    path: str
    device: int
    segments: int
    segment_bytes: int
    allocated_bytes: int
    active_bytes: int
    inactive_split_bytes: int
    largest_free_bytes: int
    events: int
    requested_bytes: int | None = None
    peak_requested_bytes: int | None = None
    peak_reserved_bytes: int | None = None
    history_complete: bool | None = None
    history_ns: int | None = None
    capacity_bytes: int | None = None
    oom_events: int = 0
    oom_request_bytes: int | None = None
    oom_driver_free_bytes: int | None = None
    driver_allocations: int = 0
    driver_frees: int = 0
    retries: int = 0
    late_allocations: int = 0
    late_driver_allocations: int = 0
    late_driver_frees: int = 0
    late_retries: int = 0
    holders: tuple[MemoryHolder, ...] = ()
    peak_holders: tuple[MemoryHolder, ...] = ()
    peak_modules: tuple[MemoryHolder, ...] = ()
    kinds: tuple[tuple[str, int], ...] = ()
    peak_kinds: tuple[tuple[str, int], ...] = ()
    over_time: MemoryOverTime | None = None
    named: bool = False
    rank: int | None = None
    step: int | None = None
    settings: tuple[tuple[str, str], ...] = ()  # of the allocator (expandable_segments, ...), as recorded
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``oom-rank-00000.pickle, device 0``."""
        return f"{PurePath(self.path).name}, device {self.device}"

    @property
    def fragmentation_fraction(self) -> float | None:
        """Inactive split bytes / reserved bytes; None where nothing is reserved."""
        return self.inactive_split_bytes / self.segment_bytes if self.segment_bytes else None

    @property
    def expandable_segments(self) -> bool:
        """Whether segments grow in place, which leaves next to no fragments."""
        return dict(self.settings).get("expandable_segments", "False") == "True"


@record
class Sign:
    """One statement of a text on the end of its job, or on what stands in its way.

    kind: of ``store.signs``. source, line: where it is. values: what it says, as printed. rank: global, as a launcher's
    prefix or the line itself has it; host, time: likewise; None: the text does not say. text: the line, without prefixes.
    """

    kind: str
    source: str
    line: int
    text: str
    rank: int | None = None
    host: str | None = None
    time: str | None = None
    values: Mapping[str, str] = field(default_factory=dict)


@record
class MachineReading:
    """What a tool of the machine says of one device or link. tool: its name (``nvidia-smi``, ``ibstat``, ``perftest``).

    device: ``GPU 65:00.0``, ``mlx5_1 port 1``; of a pair ``GPU 0 -> GPU 1``. facts: name (lower case) -> value, as printed;
    a name that several sections have follows its section (``link width current``). test, bytes_per_s: what was measured,
    and the rate as the tool counts it, both directions together where it says bidirectional.
    """

    tool: str
    device: str
    facts: Mapping[str, str] = field(default_factory=dict)
    test: str = ""
    bytes_per_s: float | None = None

    def number(self, *names: str) -> float:
        """The number that the first of these facts begins with; 0 where none is there."""
        texts = (re.match(r"[\d.]+", self.facts.get(name, "")) for name in names)
        return next((float(text[0]) for text in texts if text), 0.0)


@record
class Stated:
    """Facts that files leave open and the user states. world_size: run's name (or a part that no other has) -> ranks.

    columns: a column of a table, or a logged figure -> the name to read it under (``tok_s`` -> ``tokens_per_s``), ``-`` to
    leave it out.
    """

    world_size: Mapping[str, int] = field(default_factory=dict)
    scaling: Scaling | None = None
    columns: Mapping[str, str] = field(default_factory=dict)


@record
class LeftOut:
    """A file of a folder that was not read, and why."""

    path: str
    reason: str


@record
class Imported:
    """Everything that one source holds, in our records. format: the importer's key. path: as given.

    comm_rows: measured collectives; imported times are means over iterations (``time_ns_mean``), see ``notes``.
    arrivals: who came last to the collectives of a training.
    signs: what its text says of the job's end. readings: of devices and links, by a tool of the machine. topology: text of
    ``nvidia-smi topo -m``. hardware: what it ran on as far as the file says.
    notes: what was repaired, dropped or is doubtful. remarks: how the figures were taken, where all was read.
    left_out: files of the folder not read. columns: those whose meaning the user may state; None: it has none.
    """

    format: str
    path: str
    runs: tuple[TrainingRun, ...] = ()
    comm_rows: tuple[CommRow, ...] = ()
    arrivals: tuple[Arrivals, ...] = ()
    nccl: NcclDebug | None = None
    flight: tuple[FlightDump, ...] = ()
    signs: tuple[Sign, ...] = ()
    readings: tuple[MachineReading, ...] = ()
    memory: tuple[MemorySnapshot, ...] = ()
    topology: str | None = None
    hardware: str | None = None
    notes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    columns: tuple[str, ...] | None = None

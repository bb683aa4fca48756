"""What NCCL states in its debug log (NCCL_DEBUG=INFO; None and empty: not stated there), and what torch's flight recorder
kept of the collectives of one rank and of all ranks together.
"""

from __future__ import annotations

from typing import Literal

from stepscope.core.dataclass import record


@record
class NcclRank:
    """One member of a communicator. initialised: its init was reported complete.

    ended: destroyed | aborted | None. bus_id: of the GPU, as NCCL writes it (hexadecimal).
    """

    rank: int
    host: str
    pid: int
    cuda_device: int | None
    nvml_device: int | None
    bus_id: str | None
    initialised: bool
    ended: str | None


@record
class NcclRing:
    """The order of ranks on one channel. complete: NCCL cuts long lines, then the later ranks are missing."""

    channel: int
    ranks: tuple[int, ...]
    complete: bool


@record
class NcclTree:
    """The tree of one channel: each rank's parent, -1 at the root, None where that rank's line was not found."""

    channel: int
    parents: tuple[int | None, ...]

    @property
    def root(self) -> int | None:
        return self.parents.index(-1) if -1 in self.parents else None


@record
class NcclLink:
    """One direction between two ranks, over all channels that use the same way.

    transport: what stands after "via", without the NIC's number: P2P/IPC, P2P/CUMEM/read, SHM/direct/direct, NET/IB,
    NET/Socket, NET/AWS Libfabric, ... gdrdma: whether the NIC reads and writes GPU memory at every end that said so;
    None off the network. send_nics, receive_nics: NCCL's numbers of network devices at the two ends.
    proxy_rank: the rank through whose NIC it sends (PXN).
    """

    source: int
    destination: int
    transport: str
    channels: int
    send_nics: tuple[int, ...]
    receive_nics: tuple[int, ...]
    gdrdma: bool | None
    proxy_rank: int | None


@record
class NcclChoice:
    """Algorithm and protocol that NCCL chose for an operation of a size (subsystem TUNING, said by rank 0).

    low_bytes, high_bytes: the size as NCCL states it; they differ only where a log had too many sizes to keep each.
    channels: lowest and highest channel in use; None before NCCL 2.24. calls: lines that said so.
    """

    op: str | None
    low_bytes: int
    high_bytes: int
    algorithm: str
    protocol: str
    channels: tuple[int, int] | None
    calls: int


@record
class NcclCommunicator:
    """One communicator as its ranks' logs tell it; ranks whose logs are missing are not in ``ranks``.

    id: NCCL's own (2.18 and later). nranks is None for what was said outside any communicator's initialisation.
    nodes: as NCCL counts them. nvls: NVLink SHARP multicast is available. Channels: how many of each kind.
    """

    id: str | None
    nranks: int | None
    versions: tuple[str, ...]
    nodes: int | None
    networks: tuple[str, ...]
    ranks: tuple[NcclRank, ...]
    rings: tuple[NcclRing, ...]
    trees: tuple[NcclTree, ...]
    links: tuple[NcclLink, ...]
    choices: tuple[NcclChoice, ...]
    coll_channels: int | None
    collnet_channels: int | None
    nvls_channels: int | None
    p2p_channels: int | None
    p2p_channels_per_peer: int | None
    nvls: bool | None

    @property
    def hosts(self) -> int:
        """Number of hosts that its ranks are on."""
        return self.nodes or len({rank.host for rank in self.ranks})

    @property
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that none of the given logs tells of."""
        seen = {r.rank for r in self.ranks}
        return tuple(r for r in range(self.nranks or 0) if r not in seen)


@record
class NcclMessage:
    """A warning (WARN), or an error on its way up (``returned``: "file.cc:123 -> 2"), once per place and process.

    rank: in the largest communicator of that device; None where none is known. text: the first one's.
    """

    kind: str  # warning | returned
    rank: int | None
    host: str
    pid: int
    cuda_device: int
    place: str  # file:line
    text: str
    count: int


@record
class NcclHost:
    """Network devices of one host as NCCL lists them (``mlx5_0:1/RoCE``), by network.

    gdr_nics, no_gdr_nics: those that can and cannot reach GPU memory.
    """

    host: str
    nics: tuple[str, ...]
    gdr_nics: tuple[str, ...]
    no_gdr_nics: tuple[str, ...]


@record
class NcclLogFile:
    """One file. nccl_lines: written by NCCL; torn_lines: of those, run through by another process and left out."""

    path: str
    size_bytes: int
    lines: int
    nccl_lines: int
    torn_lines: int
    truncated: bool  # its last line has no end


@record
class NcclDebug:
    """All that was read. net_plugins: external network plugins; no_plugin: what NCCL said where it found none.

    settings: variables that NCCL reports as set by the environment, with every value seen. networks: that any process uses.
    """

    versions: tuple[str, ...]
    communicators: tuple[NcclCommunicator, ...]
    messages: tuple[NcclMessage, ...]
    hosts: tuple[NcclHost, ...]
    net_plugins: tuple[str, ...]
    no_plugin: tuple[str, ...]
    settings: tuple[tuple[str, str], ...]
    files: tuple[NcclLogFile, ...]
    notes: tuple[str, ...]
    networks: tuple[str, ...] = ()


Kept = Literal["all", "latest", "pending"]
"""all: every call since start-up. latest: the ring dropped the oldest. pending: only calls that have not finished."""

Kind = Literal[
    "missing_call",
    "size_mismatch",
    "dtype_mismatch",
    "order_mismatch",
    "op_mismatch",
    "stuck_inside",
    "incomplete_dump",
]

MISMATCHES: tuple[Kind, ...] = ("size_mismatch", "dtype_mismatch", "order_mismatch", "op_mismatch")
"""Ranks called different things."""

DTYPES = {
    "Double": "float64",
    "Float": "float32",
    "BFloat16": "bfloat16",
    "Half": "float16",
    "Long": "int64",
    "Int": "int32",
    "Short": "int16",
    "Char": "int8",
    "Byte": "uint8",
    "Bool": "bool",
    "ComplexFloat": "complex64",
    "ComplexDouble": "complex128",
    "Float8_e4m3fn": "float8_e4m3fn",
    "Float8_e5m2": "float8_e5m2",
}
"""The names of c10 scalar types (c10/core/ScalarType.h) as the recorder writes them, and torch's names."""

OPS = {
    "_all_gather_base": "all_gather",
    "all_gather_single": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "ALLGATHER_coalesced": "all_gather",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_single": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "REDUCE_SCATTER_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "all_to_all_v_single": "all_to_all",
    "allreduce_coalesced": "all_reduce",
    "all_reduce_barrier": "barrier",
    "_broadcast_oop": "broadcast",
    "_reduce_oop": "reduce",
}
"""The recorder's names for one flat tensor, for several at once and for other entry points of the same collective."""


@record
class FlightEntry:
    """One call of one rank.

    record_id: rises with every call of the process. sequence: number of the call within its group, from 1; collectives
    and point-to-point calls are counted apart. op: as in plans (``all_reduce``, ``send``). name: as recorded
    (``nccl:_all_gather_base``). state: ``completed`` also where only "retired" is recorded, as on gloo.
    source, destination: ranks within the group of a point-to-point call; None where not recorded.
    created_ns: wall clock when it was called; None where unknown.
    """

    record_id: int
    group: str
    sequence: int
    op: str
    name: str
    input_sizes: tuple[tuple[int, ...], ...]
    input_dtypes: tuple[str, ...]
    output_sizes: tuple[tuple[int, ...], ...] = ()
    output_dtypes: tuple[str, ...] = ()
    state: Literal["scheduled", "started", "completed"] = "scheduled"
    is_p2p: bool = False
    source: int | None = None
    destination: int | None = None
    created_ns: int | None = None


@record
class FlightGroup:
    """One process group as one rank knows it.

    ranks: global ranks of its members, None where not recorded. last_enqueued, last_completed: highest sequence of a
    collective called and finished; None where the recorder's counters also count other things or are missing.
    """

    name: str
    description: str | None = None
    ranks: tuple[int, ...] | None = None
    last_enqueued: int | None = None
    last_completed: int | None = None


@record
class FlightDump:
    """One rank's flight recorder, entries in order of call. ``source``: the file it was read from, "" for none."""

    rank: int
    entries: tuple[FlightEntry, ...]
    groups: tuple[FlightGroup, ...]
    kept: Kept
    world_size: int | None = None
    host: str | None = None
    version: str | None = None
    source: str = ""
    unavailable: str | None = None  # why the recorder could not be read; then there are no entries


@record
class Called:
    """What some ranks called at one place: ``all_reduce [100] float32``."""

    ranks: tuple[int, ...]
    call: str


@record
class FlightFinding:
    """One thing that ranks did not do alike, or do not get out of.

    ranks: whose doing it is; where two sides are equally many, the one without the lowest rank; empty where nobody
    stands out. called: ranks that made the call. waiting: ranks that have not got out of it. expected: the call that
    the others made; found: what ``ranks`` called instead. cause: False for what follows from another finding.
    group, sequence: None for findings about a whole dump. first_ns: wall clock of the first rank's call there.
    """

    kind: Kind
    ranks: tuple[int, ...]
    sentence: str
    group: str | None = None
    group_description: str | None = None
    sequence: int | None = None
    called: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    expected: str | None = None
    found: tuple[Called, ...] = ()
    is_p2p: bool = False
    cause: bool = True
    first_ns: int | None = None

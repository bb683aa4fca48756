"""What NCCL said of itself in its debug log (NCCL_DEBUG=INFO). None and empty: not stated there."""

from __future__ import annotations

from stepscope.core.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclRing:
    """The order of ranks on one channel. complete: NCCL cuts long lines, then the later ranks are missing."""

    channel: int
    ranks: tuple[int, ...]
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclTree:
    """The tree of one channel: each rank's parent, -1 at the root, None where that rank's line was not found."""

    channel: int
    parents: tuple[int | None, ...]

    @property
    def root(self) -> int | None:
        return self.parents.index(-1) if -1 in self.parents else None


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    def missing_ranks(self) -> tuple[int, ...]:
        """Ranks that no log given tells of."""
        seen = {r.rank for r in self.ranks}
        return tuple(r for r in range(self.nranks or 0) if r not in seen)


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclHost:
    """Network devices of one host as NCCL lists them (``mlx5_0:1/RoCE``), by network.

    gdr_nics, no_gdr_nics: those that can and cannot reach GPU memory.
    """

    host: str
    nics: tuple[str, ...]
    gdr_nics: tuple[str, ...]
    no_gdr_nics: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclLogFile:
    """One file. nccl_lines: written by NCCL; torn_lines: of those, run through by another process and left out."""

    path: str
    size_bytes: int
    lines: int
    nccl_lines: int
    torn_lines: int
    truncated: bool  # its last line has no end


@dataclass(frozen=True, slots=True, kw_only=True)
class NcclDebug:
    """All that was read. net_plugins: external network plugins; no_plugin: what NCCL said where it found none.

    settings: variables that NCCL reports as set by the environment, with every value seen.
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

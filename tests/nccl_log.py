"""Lines of NCCL's debug log, made up: a communicator as each NCCL generation tells of it.

job = Talk(nranks=4, per_host=2)          # ranks 0, 1 on alpha, 2, 3 on beta
job.rank_lines(3)                         # what rank 3's process writes
job.texts()                               # the same for all ranks, by rank
"""

from __future__ import annotations

from dataclasses import dataclass

HOSTS = ("alpha", "beta", "gamma", "delta")
CHANNELS = 2


@dataclass(frozen=True, kw_only=True)
class Talk:
    """One communicator. ``modern``: NCCL 2.18 and later, which names it and says when its init starts."""

    nranks: int = 4
    per_host: int = 2
    comm_id: str = "0xabc1"
    version: str = "2.27.3+cuda12.9"
    modern: bool = True
    number: int = 0  # of the communicator in its processes
    done: bool = True

    def host(self, rank: int) -> str:
        return HOSTS[rank // self.per_host]

    def pid(self, rank: int) -> int:
        return 700 + rank

    def pointer(self, rank: int) -> str:
        return f"0x55{self.number:02d}{rank:02d}0"

    def say(self, rank: int, text: str, *, tid: int | None = None, level: str = "NCCL INFO") -> str:
        thread = 800 + 10 * self.number + rank if tid is None else tid
        return f"{self.host(rank)}:{self.pid(rank)}:{thread} [{rank % self.per_host}] {level} {text}"

    def init(self, rank: int, stage: str) -> str:
        device = rank % self.per_host
        name = f"comm {self.pointer(rank)} rank {rank} nranks {self.nranks} cudaDev {device}"
        if not self.modern:
            return self.say(rank, f"{name} busId {device + 1}b000 - Init {stage}")
        more = f"nvmlDev {device + 4} busId {device + 1}b000 commId {self.comm_id}"
        return self.say(rank, f"ncclCommInitRank {name} {more} - Init {stage}")

    def link(self, channel: int, source: int, destination: int) -> list[str]:
        """Said by the sender and, over the network, by the receiver too."""
        ends = f"Channel {channel:02d}/0 : {source}[{source}] -> {destination}[{destination}]"
        if self.host(source) == self.host(destination):
            return [self.say(source, f"{ends} via P2P/CUMEM/read")]
        return [
            self.say(source, f"{ends} [send] via NET/IB/{channel}/GDRDMA"),
            self.say(destination, f"{ends} [receive] via NET/IB/{channel + 2}/GDRDMA/Shared"),
        ]

    def rank_lines(self, rank: int) -> list[str]:
        """A ring over all ranks in order and a chain as tree, on two channels."""
        lines = [self.say(rank, "Using network IB")]
        if rank == 0:
            lines.insert(0, self.say(rank, f"NCCL version {self.version}"))
        if self.modern:
            lines.append(self.init(rank, "START"))
        if rank == 0:
            order = "".join(f" {r:3d}" for r in range(self.nranks))
            lines += [self.say(0, f"Channel {c:02d}/{CHANNELS:02d} :{order}") for c in range(CHANNELS)]
        child = rank + 1 if rank + 1 < self.nranks else -1
        trees = "".join(f" [{c}] {child}/-1/-1->{rank}->{rank - 1}" for c in range(CHANNELS))
        lines.append(self.say(rank, f"Trees{trees}"))
        lines += self.links_of(rank)
        lines.append(
            self.say(
                rank,
                f"{CHANNELS} coll channels, 0 collnet channels, 0 nvls channels, 4 p2p channels, 1 p2p channels per peer",
            )
        )
        return [*lines, self.init(rank, "COMPLETE")] if self.done else lines

    def links_of(self, rank: int) -> list[str]:
        every = [
            text for c in range(CHANNELS) for r in range(self.nranks) for text in self.link(c, r, (r + 1) % self.nranks)
        ]
        return [text for text in every if text.startswith(f"{self.host(rank)}:{self.pid(rank)}:")]

    def texts(self) -> list[list[str]]:
        return [self.rank_lines(rank) for rank in range(self.nranks)]

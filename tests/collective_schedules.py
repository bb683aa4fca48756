"""Collective algorithms played message by message: how many rounds they take and what crosses each link.

A rank holds, of every chunk, the set of ranks whose data is in it. A round is a set of messages that travel at once; what
a rank sends, it must hold when the round begins. Sizes are fractions of S.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

Chunk = object
Flow = tuple[int, int]


@dataclass
class World:
    """state[rank][chunk] = ranks whose data it contains; sent and received are totals per rank."""

    size: int
    chunk_size: Fraction
    state: list[dict[Chunk, frozenset[int]]] = field(default_factory=list)
    rounds: int = 0
    sent: dict[int, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    received: dict[int, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    links: dict[Flow, Fraction] = field(default_factory=lambda: defaultdict(Fraction))

    def round(self, messages: Iterable[tuple[int, int, Chunk]], *, reduce: bool = False) -> None:
        """Deliver (from, to, chunk) at once. reduce: what arrives is added to what is there."""
        in_flight = [(source, to, chunk, self.state[source][chunk]) for source, to, chunk in messages]
        assert in_flight, "an empty round"
        for source, to, chunk, content in in_flight:
            here = self.state[to].get(chunk, frozenset())
            if reduce:
                assert not here & content, "counted twice"
            self.state[to][chunk] = here | content if reduce else content
            self.sent[source] += self.chunk_size
            self.received[to] += self.chunk_size
            self.links[source, to] += self.chunk_size
        self.rounds += 1

    @property
    def everyone(self) -> frozenset[int]:
        return frozenset(range(self.size))

    def busiest(self) -> Fraction:
        """The most that one rank sends or receives."""
        return max([*self.sent.values(), *self.received.values()], default=Fraction(0))


def _contributing(n: int, chunks: Sequence[Chunk], chunk_size: Fraction) -> World:
    return World(n, chunk_size, [{chunk: frozenset({rank}) for chunk in chunks} for rank in range(n)])


def ring_reduce_scatter(n: int, world: World | None = None) -> World:
    world = world or _contributing(n, range(n), Fraction(1, n))
    for step in range(n - 1):
        world.round([(r, (r + 1) % n, (r - step) % n) for r in range(n)], reduce=True)
    for r in range(n):
        assert world.state[r][(r + 1) % n] == world.everyone
    return world


def ring_all_gather(n: int, world: World | None = None) -> World:
    first = 0 if world is None else 1  # after reduce-scatter, rank r owns the chunk after its own
    if world is None:
        world = World(n, Fraction(1, n), [{r: frozenset({r})} for r in range(n)])
    for step in range(n - 1):
        world.round([(r, (r + 1) % n, (r + first - step) % n) for r in range(n)])
    return world


def ring_all_reduce(n: int) -> World:
    world = ring_all_gather(n, ring_reduce_scatter(n))
    for state in world.state:
        assert all(state[chunk] == world.everyone for chunk in range(n))
    return world


def binomial_reduce(n: int) -> World:
    """Whole tensors to rank 0: in every round half of those that still hold a part pass it on."""
    world = _contributing(n, ["all"], Fraction(1))
    distance = 1
    while distance < n:
        senders = [r for r in range(n) if r % (2 * distance) == distance]
        world.round([(r, r - distance, "all") for r in senders], reduce=True)
        distance *= 2
    assert world.state[0]["all"] == world.everyone
    return world


def binomial_broadcast(n: int, world: World | None = None) -> World:
    """Whole tensors from rank 0: the number of ranks that have it doubles in every round."""
    start = world is None
    if world is None:
        world = World(n, Fraction(1), [{"all": frozenset({0})} if r == 0 else {} for r in range(n)])
    distance = 1
    while distance < n:
        world.round([(r, r + distance, "all") for r in range(distance) if r + distance < n])
        distance *= 2
    wanted = frozenset({0}) if start else world.everyone
    assert all(state["all"] == wanted for state in world.state)
    return world


def tree_all_reduce(n: int) -> World:
    return binomial_broadcast(n, binomial_reduce(n))


def chain_broadcast(n: int, chunks: int) -> World:
    """Pipelined from rank to rank in ``chunks`` chunks."""
    world = World(
        n,
        Fraction(1, chunks),
        [{c: frozenset({0}) for c in range(chunks)} if r == 0 else {} for r in range(n)],
    )
    for step in range(chunks + n - 2 if n > 1 else 0):
        world.round([(r, r + 1, step - r) for r in range(n - 1) if 0 <= step - r < chunks])
    assert all(len(state) == chunks for state in world.state)
    return world


def chain_reduce(n: int, chunks: int) -> World:
    """The same towards rank 0, adding on the way."""
    world = _contributing(n, range(chunks), Fraction(1, chunks))
    for step in range(chunks + n - 2 if n > 1 else 0):
        messages = [(n - 1 - i, n - 2 - i, step - i) for i in range(n - 1) if 0 <= step - i < chunks]
        world.round(messages, reduce=True)
    assert all(world.state[0][c] == world.everyone for c in range(chunks))
    return world


def gather(n: int) -> World:
    world = World(n, Fraction(1, n), [{r: frozenset({r})} for r in range(n)])
    if n > 1:
        world.round([(r, 0, r) for r in range(1, n)])
    assert set(world.state[0]) == set(range(n))
    return world


def scatter(n: int) -> World:
    world = World(n, Fraction(1, n), [{c: frozenset({0}) for c in range(n)} if r == 0 else {} for r in range(n)])
    if n > 1:
        world.round([(0, r, r) for r in range(1, n)])
    assert all(r in world.state[r] for r in range(n))
    return world


def all_to_all(n: int) -> World:
    world = World(n, Fraction(1, n), [{(r, to): frozenset({r}) for to in range(n)} for r in range(n)])
    for shift in range(1, n):
        world.round([(r, (r + shift) % n, (r, (r + shift) % n)) for r in range(n)])
    assert all((source, r) in world.state[r] for r in range(n) for source in range(n))
    return world


def dissemination_barrier(n: int) -> World:
    """Every rank tells what it has heard to the one 1, 2, 4, ... places after it."""
    world = _contributing(n, ["heard"], Fraction(0))
    distance = 1
    while distance < n:
        heard = [state["heard"] for state in world.state]
        for r in range(n):
            world.state[(r + distance) % n]["heard"] |= heard[r]
        world.rounds += 1
        distance *= 2
    assert all(state["heard"] == world.everyone for state in world.state)
    return world


def gloo_broadcast_hops(n: int) -> tuple[int, Fraction]:
    """(hops, time) of the last rank where a rank sends to all its children as soon as it has the tensor.

    Time in S / link rate; children receive at equal shares of their parent's link.
    """
    hops, time = {0: 0}, {0: Fraction(0)}
    bits = max(1, (n - 1).bit_length())
    for rank in range(n):
        children = [rank | 1 << bit for bit in range(rank.bit_length(), bits) if rank | 1 << bit < n]
        for child in children:
            hops[child], time[child] = hops[rank] + 1, time[rank] + len(children)
    assert sorted(hops) == list(range(n))
    return max(hops.values()), max(time.values())


def half_duplex_all_to_all(n: int, size: Callable[[int], float]) -> float:
    """Time of an all-to-all in which the two directions of a pair take turns; the nearer successor is served first.

    size(d): what a rank sends to the one d places after it. All links have rate 1, shared max-min fairly.
    """
    left = {(i, j): size((j - i) % n) for i in range(n) for j in range(n) if i != j}

    def goes_first(flow: Flow) -> bool:
        ahead = (flow[1] - flow[0]) % n
        return ahead < n - ahead or (ahead == n - ahead and flow[0] < flow[1])

    running, time = {flow for flow in left if goes_first(flow)}, 0.0
    while running:
        rates = _max_min_rates(running)
        step = min(left[flow] / rates[flow] for flow in running)
        time += step
        for flow in sorted(running):
            left[flow] -= rates[flow] * step
        for flow in [f for f in sorted(running) if left[f] < 1e-12]:
            running.remove(flow)
            back = (flow[1], flow[0])
            if left[back] > 1e-12 and goes_first(flow):
                running.add(back)
    return time


def _max_min_rates(flows: Iterable[Flow]) -> Mapping[Flow, float]:
    waiting, rates = set(flows), {}
    room = {(side, flow[side]): 1.0 for flow in waiting for side in (0, 1)}
    while waiting:
        users = {port: [f for f in waiting if f[port[0]] == port[1]] for port in room}
        tightest = min((port for port in room if users[port]), key=lambda port: room[port] / len(users[port]))
        share = room[tightest] / len(users[tightest])
        for flow in users[tightest]:
            rates[flow] = share
            waiting.remove(flow)
            for side in (0, 1):
                room[side, flow[side]] -= share
    return rates

"""The algorithms of NCCL and RCCL, in order: ring, tree, halves, the NVLink switch, straight messages.

Each yields what one call of ``op`` costs on a machine, a candidate for every protocol that may carry it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from stepscope.predict.collectives import constants
from stepscope.predict.collectives.constants import PROTOCOLS
from stepscope.predict.collectives.costs import (
    LL,
    LL128,
    SIMPLE,
    AlgorithmCost,
    collective,
    fill_us,
    hop_us,
    latencies,
    limit,
    protocols,
    step_us,
    transfer_us,
)
from stepscope.predict.collectives.machine import Place, launched_by_one

_CHAINS = ("broadcast", "reduce")


def _ring_wire_gb_per_s(place: Place, protocol: int) -> float:
    """GB/s on the wire of one GPU; every ring crosses each node's adapters once."""
    wire = min(place.ring, place.node_net) if place.domains > 1 else place.ring
    if place.library == "rccl":
        return wire * constants.RCCL_RING_RATE[protocol]
    gen, scale = place.generation, place.scale
    if protocol == LL:
        return min(wire * constants.LL_RATE, gen.ll_max[scale])
    if protocol == LL128:
        return min(wire * constants.LL128_RATE, gen.channels * gen.ring_ll128_channel[scale])
    return wire


def ring_latency_us(op: str, place: Place, protocol: int) -> float:
    """Return a ring's latency: 2(n-1) steps of an all-reduce, n-1 of the others; a lap crosses all node boundaries but
    one."""
    lat = latencies(place, tree=False)
    steps = collective(op).steps(world_size=place.ranks, algorithm="chain" if op in _CHAINS else "ring")
    hops = (place.domains - 1) * (2 if op == "all_reduce" else 1)
    inside = step_us(place, lat, protocol)
    if op in _CHAINS and protocol == SIMPLE:
        inside = latencies(place, tree=True).link_us[protocol]  # a chunk has to arrive before it is passed on
    waits = (steps - hops) * inside + hops * hop_us(place, lat, protocol)
    if place.library == "nccl" and protocol == SIMPLE and place.domains > 1 and op == "all_reduce":
        waits *= constants.RING_PLATEAU[place.generation.key]
    return lat.base_us[protocol] + waits


def ring(op: str, size_bytes: int, place: Place) -> Iterator[AlgorithmCost]:
    """Rings through all ranks: bandwidth-optimal, latency grows with the ranks."""
    chain = op in _CHAINS
    wire = collective(op).wire_bytes(size_bytes, world_size=place.ranks, algorithm="chain" if chain else "ring")
    for protocol in protocols(place):
        rate = _ring_wire_gb_per_s(place, protocol)
        latency = ring_latency_us(op, place, protocol)
        fill = fill_us(place, size_bytes, rate) if protocol == SIMPLE else 0.0
        yield AlgorithmCost(
            algorithm="ring",
            protocol=PROTOCOLS[protocol],
            latency_us=latency + fill,
            transfer_us=transfer_us(wire, rate),
            tuner_us=latency + transfer_us(wire, rate) if place.library == "nccl" else None,
            limit=limit(place, place.ring, place.node_net),
        )


def mid_size_share(protocol: int, size_bytes: int) -> float:
    """NCCL's own correction of a tree's rate, between its powers of two on a straight line in log(size)."""
    shares = constants.TREE_MID_SIZES[protocol]
    at = max(math.log2(max(size_bytes, 64) / 64), 0)
    low = int(at)
    if low >= len(shares) - 1:
        return 1.0
    return shares[low] + (shares[low + 1] - shares[low]) * (at - low)


def _tree_net_gb_per_s(place: Place) -> float:
    """Return GB/s of a node's adapters for 2 S of a tree; no limit inside one node.

    Between two nodes each way carries S; between more, a node is a leaf of one tree and inside the other: 2 S.
    """
    return place.node_net * (2 if place.domains == 2 else 1) if place.domains > 1 else math.inf


def _tree_wire_gb_per_s(place: Place, protocol: int, size_bytes: int) -> float:
    """Return GB/s on the wire of one GPU, 2 S in all: the slower of links and network, as far as the protocol uses them."""
    net = _tree_net_gb_per_s(place)
    wire = min(place.ring, net)
    if place.library == "rccl":
        return wire * constants.RCCL_TREE_RATE[0 if place.domains <= 2 else 1][protocol]
    gen, scale = place.generation, place.scale
    rate = min(place.ring * constants.TREE_RATE, net, gen.channels * gen.tree_channel[scale])
    if protocol == LL:
        rate = min(rate * constants.TREE_LL_RATE, gen.ll_max[scale])
    if protocol == LL128:
        rate = min(rate * constants.LL128_TREE_RATE[scale], gen.channels * gen.tree_ll128_channel[scale])
    # With Simple the whole chunks of latency_us are what NCCL's correction stands for.
    return rate if protocol == SIMPLE else rate * mid_size_share(protocol, size_bytes)


def _tree_tuner_us(place: Place, protocol: int, wire: float, size_bytes: int) -> float | None:
    """NCCL's own estimate: short steps, and its correction of the rate for every protocol."""
    if place.library != "nccl":
        return None
    rate = _tree_wire_gb_per_s(place, protocol, size_bytes)
    if protocol == SIMPLE:
        rate *= mid_size_share(protocol, size_bytes)
    return tree_latency_us(place, protocol) + transfer_us(wire, rate)


def tree_latency_us(place: Place, protocol: int, size_bytes: int = 0) -> float:
    """Return the time up and down a node's chain and the tree of nodes; large messages wait for whole chunks each step."""
    lat = latencies(place, tree=True)
    inside, across = step_us(place, lat, protocol), hop_us(place, lat, protocol)
    if protocol != LL and place.library == "nccl":
        # LL128 data are taken as they arrive; only between nodes are they passed on by whole chunks.
        full = min(1.0, size_bytes / constants.TREE_CHUNK_BYTES)
        if protocol == SIMPLE:
            inside += full * max(constants.TREE_CHUNK_STEP_US - inside, 0)
        across += full * max(constants.TREE_CHUNK_STEP_US - lat.net_us[protocol], 0)
    hops = math.floor(math.log2(place.domains))
    return lat.base_us[protocol] + 2 * ((place.domain_ranks - 1) * inside + hops * across)


def tree(op: str, size_bytes: int, place: Place) -> Iterator[AlgorithmCost]:
    """Double binary tree over the nodes, chains inside them: few steps across the network, less bandwidth inside."""
    # RCCL keeps trees with Simple off on one node of the MI300 series.
    wire = collective(op).wire_bytes(size_bytes, world_size=place.ranks, algorithm="tree")
    for protocol in protocols(place):
        if place.library == "rccl" and protocol == SIMPLE and place.domains == 1:
            continue
        yield AlgorithmCost(
            algorithm="tree",
            protocol=PROTOCOLS[protocol],
            latency_us=tree_latency_us(place, protocol, size_bytes),
            transfer_us=transfer_us(wire, _tree_wire_gb_per_s(place, protocol, size_bytes)),
            tuner_us=_tree_tuner_us(place, protocol, wire, size_bytes),
            limit=limit(place, place.ring, _tree_net_gb_per_s(place)),
        )


def halving_steps(op: str, ranks: int) -> int:
    """Return ceil(log2 n) for one half, twice that for an all-reduce."""
    return math.ceil(math.log2(ranks)) * (2 if op == "all_reduce" else 1)


def halving_wire_factor(op: str, ranks: int) -> float:
    """Return (n - 1) / n for one half, twice that for an all-reduce: as much as a ring's."""
    return (ranks - 1) / ranks * (2 if op == "all_reduce" else 1)


def halving_doubling(op: str, size_bytes: int, place: Place) -> Iterator[AlgorithmCost]:
    """Recursive halving and doubling: log2(n) steps. NCCL has it as PAT, for one GPU a node; otherwise for comparison."""
    lat = latencies(place, tree=True)
    wire = size_bytes * halving_wire_factor(op, place.ranks)
    if place.library == "nccl" and place.domains == place.ranks > 1 and op != "all_reduce":
        base = constants.PAT_BASE_US + constants.PAT_LINEAR_US * place.ranks
        hops = math.floor(math.log2(place.domains)) * hop_us(place, lat, SIMPLE)
        yield AlgorithmCost(
            algorithm="pat",
            protocol="Simple",
            latency_us=base + hops / constants.PAT_NET_DIVISOR,
            transfer_us=transfer_us(wire, place.node_net * constants.PAT_RATE),
            limit="network",
        )
        return
    inside = halving_steps(op, math.ceil(place.domain_ranks)) if place.domain_ranks > 1 else 0
    across = halving_steps(op, place.ranks) - inside
    # In a round between nodes all ranks of a node send at once; the first such round carries half of S.
    rate = min(place.pair, place.gpu_net) if place.domains > 1 else place.pair
    yield AlgorithmCost(
        algorithm="halving_doubling",
        protocol="Simple",
        latency_us=lat.base_us[SIMPLE] + inside * step_us(place, lat, SIMPLE) + across * hop_us(place, lat, SIMPLE),
        transfer_us=transfer_us(wire, rate),
        limit=limit(place, place.pair, place.gpu_net),
        offered=False,
    )


def hierarchical(op: str, size_bytes: int, place: Place) -> Iterator[AlgorithmCost]:
    """Reduce-scatter inside a node, one ring for each rail between the nodes, all-gather inside. For comparison."""
    if place.domains < 2 or place.domain_ranks < 2:
        return
    halves = 2 if op == "all_reduce" else 1
    g, nodes = place.domain_ranks, place.domains
    lat = latencies(place, tree=False)
    inside = halves * (g - 1) / g * size_bytes
    rail = halves * (nodes - 1) / nodes * size_bytes / g
    latency = lat.base_us[SIMPLE]
    latency += halves * (g - 1) * step_us(place, lat, SIMPLE)
    latency += halves * (nodes - 1) * hop_us(place, lat, SIMPLE)
    inside_us, rail_us = transfer_us(inside, place.ring), transfer_us(rail, place.gpu_net)
    yield AlgorithmCost(
        algorithm="hierarchical",
        protocol="Simple",
        latency_us=latency,
        transfer_us=inside_us + rail_us,
        limit=limit(place, 1 / inside_us if inside_us else 0, 1 / rail_us if rail_us else 0),
        offered=False,
    )


_HEADS = 8
_LEAST = 3


def switch_rate(place: Place) -> float:
    """GB/s of S that the switch of one domain reduces and returns; 0: it cannot.

    NCCL gives a domain one channel for each GPU and loses one of them to the pipeline: (h - 1) / h, at most 8 heads.
    """
    if place.switch_peak is None or place.domain_ranks < _LEAST:
        return 0.0
    heads = min(place.domain_ranks, _HEADS)
    efficiency = place.generation.nvls_rate * constants.SWITCH_SHARE
    return place.switch_peak * efficiency * (heads - 1) / heads


def _switch_tuner_gb_per_s(place: Place) -> float:
    """GB/s of S in NCCL's own table: one channel for each GPU at a rate its search tries."""
    gen, heads = place.generation, round(min(place.domain_ranks, _HEADS))
    links = place.ring / constants.RING_SHARE * heads / (heads - 1)
    speed = next((s for s in gen.nvls_speeds if s * heads <= links), gen.nvls_speeds[-1])
    channel = speed * gen.nvls_rate * (heads - 1) / heads * 2
    if place.domains > 1:
        channel = min(channel, _tree_net_gb_per_s(place) / heads, gen.nvls_tree_channel[place.scale])
    return channel * heads * place.ranks / (2 * (place.ranks - 1))


def nvls(_op: str, size_bytes: int, place: Place) -> Iterator[AlgorithmCost]:
    """Reduction inside the NVLink switch (NVLS); across nodes a tree of such nodes, or SHARP in the network as well."""
    inside = switch_rate(place)
    if inside == 0:
        return
    by_table = transfer_us(size_bytes, _switch_tuner_gb_per_s(place))
    fill = fill_us(place, size_bytes, inside)
    latency = constants.NVLS_US + fill
    if place.domains == 1:
        yield AlgorithmCost(
            algorithm="nvls",
            protocol="Simple",
            latency_us=latency,
            transfer_us=transfer_us(size_bytes, inside),
            limit="NVLink switch",
            tuner_us=constants.NVLS_US + by_table,
        )
        return
    hop = constants.NVLS_TREE_NET_US + 2 * place.net_latency_us
    net = place.node_net if place.domains == 2 else place.node_net / 2
    hops = 2 * math.floor(math.log2(place.domains))
    full = min(1.0, size_bytes / constants.TREE_CHUNK_BYTES)
    latency = constants.NVLS_US + full * (2 * fill + hops * fill_us(place, size_bytes, net))
    yield AlgorithmCost(
        algorithm="nvls_tree",
        protocol="Simple",
        latency_us=latency + hops * hop,
        transfer_us=transfer_us(size_bytes, min(inside, net)),
        limit="network" if net < inside else "NVLink switch",
        tuner_us=constants.NVLS_US + hops * hop + by_table,
    )
    yield AlgorithmCost(
        algorithm="nvls_sharp",
        protocol="Simple",
        latency_us=latency + hop,
        transfer_us=transfer_us(size_bytes, min(inside, place.node_net)),
        limit="network" if place.node_net < inside else "NVLink switch",
        offered=place.sharp,
    )


AT_ONCE = 8
"""Peers that one NCCL channel serves at a time (NCCL_MAX_DEV_WORK_P2P_PER_BATCH)."""


def direct(op: str, size_bytes: int, place: Place) -> Iterator[AlgorithmCost]:
    """Messages straight between the ranks that need them: all-to-all, gather and scatter, in rounds of peers."""
    n, g = place.ranks, place.domain_ranks
    peers = n - 1
    near = size_bytes * (g - 1) / n
    far = size_bytes * (n - g) / n
    rooted = op in ("gather", "scatter")
    # The root's bytes leave by its own adapter; in an all-to-all each GPU has its part of all of them.
    near_us = transfer_us(near, place.spread)
    far_us = transfer_us(far, place.gpu_net) if place.domains > 1 else 0.0
    lat = latencies(place, tree=False)
    rounds = math.ceil(peers / AT_ONCE)
    posts = (peers if rooted else 2 * peers) * (n if launched_by_one(place) else 1)
    for protocol, name in ((LL, "LL"), (SIMPLE, "Simple")):
        if protocol == LL and size_bytes / n > ll_most_bytes(place):
            continue
        hop = hop_us(place, lat, protocol) if place.domains > 1 else 0.0
        step = step_us(place, lat, protocol)
        slower = 2.0 if protocol == LL else 1.0
        yield AlgorithmCost(
            algorithm="direct",
            protocol=name,
            latency_us=lat.base_us[protocol] + min(peers, AT_ONCE) * step + rounds * hop + posts * constants.POST_US,
            transfer_us=max(near_us, far_us) * slower if not rooted else (near_us + far_us) * slower,
            limit=limit(place, 1 / near_us if near_us else math.inf, 1 / far_us if far_us else math.inf),
        )


LL_MOST_BYTES = 16384
"""NCCL_P2P_LL_THRESHOLD: most bytes of a message on one channel that go in the LL protocol."""
CHANNELS_TO_PEER = 8
"""Inside a node, over NVLink; one across the network."""


def ll_most_bytes(place: Place) -> int:
    """Largest message to one peer that goes in the LL protocol."""
    return LL_MOST_BYTES * (CHANNELS_TO_PEER if place.domains == 1 else 1)


def send_recv(_op: str, size_bytes: int, place: Place) -> Iterator[AlgorithmCost]:
    """Each rank sends S to the next one, all at once (what sendrecv_perf times); between nodes over one adapter."""
    lat = latencies(place, tree=False)
    adapters = place.gpu_net if place.domain_ranks > 1 else place.node_net
    # A GPU sends through its own adapter; a node with fewer adapters than GPUs still gives one message one adapter.
    one = max(adapters, place.node_net / adapter_count(place)) if place.domains > 1 else 0.0
    rate = min(place.pair, one) if place.domains > 1 else place.pair
    for protocol, name in ((LL, "LL"), (SIMPLE, "Simple")):
        if protocol == LL and size_bytes > ll_most_bytes(place):
            continue
        step = step_us(place, lat, protocol)
        hop = hop_us(place, lat, protocol) if place.domains > 1 else 0.0
        yield AlgorithmCost(
            algorithm="send_recv",
            protocol=name,
            latency_us=lat.base_us[protocol] + max(step, hop),
            transfer_us=transfer_us(size_bytes * (2 if protocol == LL else 1), rate),
            limit=limit(place, place.pair, one),
        )


def adapter_count(place: Place) -> float:
    fabric = place.fabric
    return (fabric.adapters_per_node if fabric else None) or place.domain_ranks


def all_pairs(op: str, size_bytes: int, place: Place) -> Iterator[AlgorithmCost]:
    """Every device reduces its part from, and returns it to, all others at once over a full mesh (MSCCL in RCCL)."""
    if not place.all_pairs:
        return
    algorithm = "direct" if op == "all_to_all" else "ring"  # the wire bytes are a ring's
    wire = collective(op).wire_bytes(size_bytes, world_size=place.ranks, algorithm=algorithm)
    steps = 2 if op == "all_reduce" else 1
    yield AlgorithmCost(
        algorithm="all_pairs",
        protocol="LL",
        latency_us=constants.RCCL_RING.base_us[LL] + steps * constants.RCCL_RING.link_us[LL],
        transfer_us=transfer_us(wire, place.spread * constants.LL_RATE),
        limit="links",
    )


_HALVES = ("all_reduce", "all_gather", "reduce_scatter")

ALGORITHMS: tuple[tuple[tuple[str, ...], Callable[[str, int, Place], Iterable[AlgorithmCost]]], ...] = (
    (("all_reduce", "all_gather", "all_to_all"), all_pairs),
    (("all_to_all", "gather", "scatter"), direct),
    (_HALVES, halving_doubling),
    (_HALVES, hierarchical),
    (("all_reduce",), nvls),
    ((*_HALVES, "broadcast", "reduce"), ring),
    (("send_recv",), send_recv),
    (("all_reduce",), tree),
)
"""The collectives that each can carry out; nothing comes of one that the machine cannot run."""

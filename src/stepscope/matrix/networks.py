"""Emulated networks of cells: their canonical text, whether they can be made here, and their link rate."""

from __future__ import annotations

from functools import cache

from stepscope.config.network import EmulatedNetwork, obstacle, parse_network
from stepscope.core.errors import Unavailable
from stepscope.core.words import counted
from stepscope.matrix.machine import Machine
from stepscope.records.cell import Cell


def canonical(text: str | None) -> str | None:
    """The text that stands in a cell's identity: one for each network. Raises UsageError."""
    return None if text is None else str(parse_network(text))


def refused(text: str | None, *, world_size: int, device: str, joined: bool) -> str | None:
    """Why ranks of ``device`` cannot run in network ``text`` here; None when they can."""
    if text is None:
        return None
    if joined:
        return f"network {text}: ranks that a launcher started cannot move into an emulated network"
    if device != "cpu":
        return f"network {text}: emulated networks carry gloo between CPU ranks only"
    network = parse_network(text)
    found = _emulation(network.delay_ns > 0)
    if isinstance(found, Unavailable):
        return f"network {text}: {found.reason}"
    return obstacle(network, world_size)


def misfit(cell: Cell, machine: Machine) -> str | None:
    """Why ``cell`` cannot run in its network here, or in the world that a launcher has started; None when it can."""
    joined = machine.joined_world_size
    if reason := refused(cell.network, world_size=cell.world_size, device=cell.device, joined=joined is not None):
        return reason
    if joined is not None and cell.world_size != joined:
        return f"{counted(cell.world_size, 'rank')}: the launcher started {joined}"
    if joined is not None and cell.env:
        return f"{', '.join(sorted(cell.env))} cannot be set: the launcher has already started the ranks"
    return None


def slowest_bits_per_s(text: str | None) -> float | None:
    """Rate of the slowest link; None without a network."""
    if text is None:
        return None
    network: EmulatedNetwork = parse_network(text)
    return float(min([network.rate_bits_per_s, *(slow.rate_bits_per_s for slow in network.slow)]))


@cache
def _emulation(delayed: bool) -> Unavailable | None:
    """Asked once: it starts a process."""
    from stepscope.launch.netns.probe import probe_emulation

    return probe_emulation(delayed=delayed)

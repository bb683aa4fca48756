"""The link that a comm run's busbw is compared with, where it is known."""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import Unavailable
from stepscope.hardware import find
from stepscope.records.environment import EnvironmentRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Peak of the slowest link between ranks, bytes/s per direction, and where the figure comes from."""

    bytes_per_s: float
    name: str


def link_of(
    environment: EnvironmentRecord, *, device: str, hosts: int, network_bits_per_s: float | None = None
) -> Link | None:
    """The link that all ranks share: the emulated network's, or the GPUs' own on one host. None: not known.

    Over real hosts it is the NIC that ranks use, which no probe tells for certain; loopback has no peak at all.
    """
    if network_bits_per_s is not None:
        return Link(bytes_per_s=network_bits_per_s / 8, name="emulated network")
    if device != "cuda" or hosts != 1 or environment.torch is None:
        return None
    names = set(environment.torch.device_names)
    if len(names) != 1:
        return None
    found = find(names.pop())
    if isinstance(found, Unavailable) or found.link is None or found.link.optional:
        return None
    return Link(bytes_per_s=found.link.bytes_per_s, name=found.link.name)

"""The link that a comm run's busbw is compared with, where it is known."""

from __future__ import annotations

from stepscope.core.errors import Unavailable
from stepscope.machine.peaks import find
from stepscope.records.environment import EnvironmentRecord


def link_peak(
    environment: EnvironmentRecord, *, device: str, hosts: int, network_bits_per_s: float | None = None
) -> float | None:
    """Peak of the link that all ranks share, bytes/s per direction: the emulated network's, or the GPUs' own on one host.
    None: not known.

    Over real hosts it is the NIC that ranks use, which no probe tells for certain; loopback has no peak at all.
    """
    if network_bits_per_s is not None:
        return network_bits_per_s / 8
    if device != "cuda" or hosts != 1 or environment.torch is None:
        return None
    names = set(environment.torch.device_names)
    if len(names) != 1:
        return None
    found = find(names.pop())
    if isinstance(found, Unavailable) or found.link is None or found.link.optional:
        return None
    return found.link.bytes_per_s

"""What alpha and beta measured through TCP sockets say about the link itself."""

from __future__ import annotations

ETHERNET_MTU = 1500

_IP_AND_TCP = 52  # IPv4 20, TCP 20, its time stamps 12 (RFC 791, 9293, 7323)
_ETHERNET = 14  # what a Linux queueing discipline counts of a frame beside the packet


def link_rate_bytes_per_s(payload_bytes_per_s: float, *, mtu: int = ETHERNET_MTU) -> float:
    """Rate of an Ethernet link that carries ``payload_bytes_per_s`` in full TCP segments: with headers, x 1.046 at 1500.

    Counts a frame as ``tc`` does: without preamble, check sequence and gap (24 bytes more on a real wire).
    """
    return payload_bytes_per_s * (mtu + _ETHERNET) / (mtu - _IP_AND_TCP)

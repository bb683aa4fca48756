"""Two hosts try each other over plain sockets: who reaches whom at which address, a round trip, a few megabytes.

The listener answers only those who know its token, so that another service at an address is not taken for the host.
"""

from __future__ import annotations

import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from statistics import median
from typing import Any

import psutil

CONNECT_TIMEOUT_S = 3.0
TRANSFER_TIMEOUT_S = 20.0
TRANSFERS = 4
_REQUEST = struct.Struct("!32sIQ")
"""The layout of a request: token, round trips, bytes of a transfer."""


class Listener:
    """Serves round trips and transfers at a port of every address of this host until it is closed."""

    def __init__(self) -> None:
        self.token = secrets.token_hex(16)
        self._socket = listening()
        self.port = int(self._socket.getsockname()[1])
        threading.Thread(target=self._serve, name="stepscope-listener", daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        """Answer each peer in a thread of its own, until the socket is closed."""
        while True:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(link,), name="stepscope-peer", daemon=True).start()

    def _answer(self, link: socket.socket) -> None:
        """Answer one peer that knows the token: round trips, then bytes."""
        with link, suppress(OSError, EOFError):
            link.settimeout(TRANSFER_TIMEOUT_S)
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            token, trips, size = _REQUEST.unpack(_read_bytes(link, _REQUEST.size))
            if not secrets.compare_digest(token, self.token.encode()):
                return
            link.sendall(b"+")
            for _ in range(trips):
                link.sendall(_read_bytes(link, 1))
            for _ in range(TRANSFERS if size else 0):
                _drain_bytes(link, size)
                link.sendall(b".")


def listening(port: int = 0) -> socket.socket:
    """Return a socket that listens on all addresses, of IPv6 too where there is any."""
    if socket.has_dualstack_ipv6():
        with suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def try_addresses(addresses: Sequence[str], port: int, token: str) -> dict[str, dict[str, Any]]:
    """Connect to each address; give ``interface`` of the connection from here, or ``error``: why there is
    none."""

    def attempt(address: str) -> dict[str, Any]:
        """Return the interface over which an address is reached, or the error."""
        try:
            with _connected_peer(address, port, token) as link:
                local = _plain_address(link.getsockname()[0])
        except (OSError, EOFError) as error:
            return {"error": reason(error)}
        return {"interface": interface_of(local)}

    if not addresses:
        return {}
    with ThreadPoolExecutor(max_workers=len(addresses)) as pool:
        return dict(zip(addresses, pool.map(attempt, addresses), strict=True))


def measure_peer(address: str, port: int, token: str, *, trips: int, size_bytes: int) -> dict[str, Any]:
    """Measure ``round_trip_ns`` (median of one-byte messages) and ``bytes_per_s`` from here to there; or give an ``error``.

    The transfer runs several times and the fastest counts: the first opens the connection's window.
    """
    try:
        with _connected_peer(address, port, token, trips=trips, size_bytes=size_bytes) as link:
            link.settimeout(TRANSFER_TIMEOUT_S)
            times = [_timed_round_trip(link) for _ in range(trips)]
            round_trip_ns = int(median(times))
            payload, took = memoryview(bytes(1 << 20)), []
            for _ in range(TRANSFERS):
                begun = time.perf_counter_ns()
                left = size_bytes
                while left > 0:
                    left -= link.send(payload[: min(left, len(payload))])
                _read_bytes(link, 1)
                took.append(time.perf_counter_ns() - begun)
            local = _plain_address(link.getsockname()[0])
    except (OSError, EOFError) as error:
        return {"error": reason(error)}
    return {
        "round_trip_ns": round_trip_ns,
        "bytes_per_s": size_bytes / max(1, min(took) - round_trip_ns) * 1e9,
        "interface": interface_of(local),
    }


def interface_of(address: str) -> str | None:
    """The network interface that holds ``address``; None where none does."""
    for name, net_if_addr in psutil.net_if_addrs().items():
        if any(_plain_address(entry.address) == address for entry in net_if_addr):
            return name
    return None


def reason(error: OSError | EOFError) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(error, EOFError):
        return "another service answers there"
    return error.strerror or str(error)


def _connected_peer(address: str, port: int, token: str, *, trips: int = 0, size_bytes: int = 0) -> socket.socket:
    """Return a link to a peer that knows the token. Raises OSError or EOFError."""
    link = socket.create_connection((address, port), timeout=CONNECT_TIMEOUT_S)
    try:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link.sendall(_REQUEST.pack(token.encode(), trips, size_bytes))
        if _read_bytes(link, 1) != b"+":
            raise EOFError
    except BaseException:
        link.close()
        raise
    return link


def _timed_round_trip(link: socket.socket) -> int:
    begun = time.perf_counter_ns()
    link.sendall(b"?")
    _read_bytes(link, 1)
    return time.perf_counter_ns() - begun


def _read_bytes(link: socket.socket, count: int) -> bytes:
    """Read so many bytes. Raises EOFError where the link ends before."""
    received = b""
    while len(received) < count:
        part = link.recv(count - len(received))
        if not part:
            raise EOFError
        received += part
    return received


def _drain_bytes(link: socket.socket, size: int) -> None:
    """Read so many bytes and drop them. Raises EOFError where the link ends before."""
    buffer = bytearray(1 << 20)
    while size > 0:
        got = link.recv_into(buffer, min(size, len(buffer)))
        if not got:
            raise EOFError
        size -= got


def _plain_address(address: str) -> str:
    """Return the address without its zone, and without the prefix of an IPv4 address in IPv6 form."""
    return address.partition("%")[0].removeprefix("::ffff:")

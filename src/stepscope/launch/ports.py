"""Ports at which ranks meet: below those that Linux gives to whatever connects, 32768 and on, of which any may be in use."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

from stepscope.core.errors import MissingError

FIRST_PORT, PORTS = 20_000, 12_000


def free_port(first: int | None = None) -> int:
    """Return ``first`` or the next port of this host that nothing listens at now; None begins at one by the process, as
    others look, too.

    Raises MissingError.
    """
    start = os.getpid() * 7919 if first is None else first - FIRST_PORT
    for tried in range(PORTS):
        port = FIRST_PORT + (start + tried) % PORTS
        with suppress(OSError), socket.create_server(("", port)):
            return port
    raise MissingError(
        f"no port of this host is free from {FIRST_PORT} to {FIRST_PORT + PORTS - 1}", fix="export MASTER_PORT"
    )

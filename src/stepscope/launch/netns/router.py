"""``python -m stepscope.launch.netns.router --delay-ns N FD:RATE:BURST...``: a switch that holds every frame for a while.

It reads Ethernet frames from one TAP device per host, waits the one-way delay, lets them through the receiver's token
bucket, and writes them to the receiver's device. The sender's bucket is the kernel's (tbf on the device itself).
Frames are segment trains with a virtio header, as the kernel gives them; a train counts as the frames it stands for.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import heapq
import os
import select
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

VNET_BYTES = 10
READ_BYTES = VNET_BYTES + 14 + 65535
READS_AT_ONCE = 32
MAX_LATE_NS = 200_000
_PR_SET_TIMERSLACK = 29
_IPV4_TCP_OFFSET = 12


@dataclass(slots=True)
class TokenBucket:
    """A token bucket as a clock: the time at which it will be full again.

    rate_bits_per_s, burst_bytes: as tbf has them.
    """

    rate_bits_per_s: int
    burst_bytes: int
    full_ns: int = 0

    def pass_at(self, now_ns: int, size_bytes: int) -> int:
        """Return when a packet that comes at ``now_ns`` may pass, after all before it; it is taken as passed then."""
        cost_ns = size_bytes * 8_000_000_000 // self.rate_bits_per_s
        burst_ns = self.burst_bytes * 8_000_000_000 // self.rate_bits_per_s
        full_ns = max(self.full_ns, now_ns)
        self.full_ns = full_ns + cost_ns
        return max(now_ns, self.full_ns - max(burst_ns, cost_ns))


@dataclass(slots=True)
class Port:
    """A host's device, and the bucket of what is sent to it."""

    fd: int
    bucket: TokenBucket


def wire_bytes(frame: bytes) -> int:
    """Count the bytes on the wire of what ``frame`` (virtio header first) stands for: each segment of a train has all
    headers."""
    size = len(frame) - VNET_BYTES
    segment = int.from_bytes(frame[4:6], sys.byteorder)
    if frame[1] == 0 or segment == 0:
        return size
    transport = int.from_bytes(frame[6:8], sys.byteorder)
    headers = transport + (frame[VNET_BYTES + transport + _IPV4_TCP_OFFSET] >> 4) * 4
    segments = -(-(size - headers) // segment)
    return size + (segments - 1) * headers


@dataclass(slots=True)
class Router:
    """Frames on their way, ordered by when they leave."""

    ports: tuple[Port, ...]
    delay_ns: int
    queue: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    count: int = 0

    def take(self, frame: bytes, now_ns: int) -> None:
        """Hold a frame that a host has sent. A frame to nobody here is dropped, as a switch without flooding does."""
        receiver = frame[VNET_BYTES + 5]
        if frame[VNET_BYTES] != 0x02 or receiver >= len(self.ports):
            return
        port = self.ports[receiver]
        due_ns = port.bucket.pass_at(now_ns + self.delay_ns, wire_bytes(frame))
        self.count += 1
        heapq.heappush(self.queue, (due_ns, self.count, port.fd, frame))

    def due(self, now_ns: int) -> list[tuple[int, bytes]]:
        """Return (device, frame) of everything that leaves by ``now_ns``, in order."""
        out = []
        while self.queue and self.queue[0][0] <= now_ns:
            _, _, fd, frame = heapq.heappop(self.queue)
            out.append((fd, frame))
        return out

    def next_ns(self) -> int | None:
        """Return when the next frame leaves, or None when none is held."""
        return self.queue[0][0] if self.queue else None


def serve(router: Router) -> None:
    """Move frames until the process is ended."""
    fds = [port.fd for port in router.ports]
    clock = time.monotonic_ns
    late_ns = 0  # how late this process wakes up, smoothed: it asks to be woken that much earlier
    while True:
        now_ns = clock()
        due_ns = router.next_ns()
        wake_ns = None if due_ns is None else max(now_ns, due_ns - late_ns)
        # select and not poll: its time-out has microseconds.
        readable, _, _ = select.select(fds, (), (), None if wake_ns is None else (wake_ns - now_ns) / 1e9)
        if wake_ns is not None and wake_ns > now_ns and not readable:
            late_ns += (min(clock() - wake_ns, MAX_LATE_NS) - late_ns) // 8
        for fd in readable:
            for _ in range(READS_AT_ONCE):
                try:
                    frame = os.read(fd, READ_BYTES)
                except BlockingIOError:
                    break
                router.take(frame, clock())
        for fd, frame in router.due(clock()):
            os.write(fd, frame)


def main(arguments: list[str] | None = None) -> None:
    """Forward packets between taps until standard input ends."""
    parser = argparse.ArgumentParser(prog="stepscope.launch.netns.router")
    parser.add_argument("--delay-ns", type=int, required=True)
    parser.add_argument("ports", nargs="+", metavar="FD:RATE:BURST")
    asked = parser.parse_args(arguments)
    ports = []
    for text in asked.ports:
        fd, rate, burst = (int(part) for part in text.split(":"))
        ports.append(Port(fd, TokenBucket(rate, burst)))
    # The kernel may round a sleep up by 50 us, a twentieth of a usual delay.
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1)
    gc.disable()  # nothing here makes cycles
    # A network does not wait for the hosts' processors. Only with privilege: without it, ranks that compute delay frames.
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    serve(Router(tuple(ports), asked.delay_ns))


if __name__ == "__main__":
    main()

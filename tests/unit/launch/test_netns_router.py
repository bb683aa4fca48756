"""The delaying switch without devices: what it counts, when it lets go, and in which order."""

import struct
import sys

from stepscope.launch.netns.router import VNET_BYTES, Port, Router, TokenBucket, wire_bytes

MS = 1_000_000


def frame(receiver: int, size: int = 100, *, segment: int = 0, payload: int | None = None) -> bytes:
    """A TCP frame with a virtio header; ``segment``: it is a train of segments with that much payload each."""
    headers = 14 + 20 + 32
    size = size if payload is None else headers + payload
    vnet = struct.pack("=BBHHHH", 1, 1 if segment else 0, headers, segment, 34, 16)
    ethernet = bytes([2, 0, 0, 0, 0, receiver, 2, 0, 0, 0, 0, 9, 8, 0])
    tcp = bytearray(32)
    tcp[12] = 8 << 4
    body = ethernet + bytes(20) + bytes(tcp)
    return vnet + body + bytes(size - len(body))


def router(*, delay_ns: int = MS, rate: int = 10**9, burst: int = 125_000) -> Router:
    return Router(tuple(Port(fd, TokenBucket(rate, burst)) for fd in (10, 11, 12)), delay_ns)


def test_a_lone_frame_leaves_after_the_delay() -> None:
    switch = router()
    switch.take(frame(1), 5 * MS)
    assert switch.next_ns() == 6 * MS
    assert switch.due(6 * MS - 1) == []
    assert switch.due(6 * MS) == [(11, frame(1))]
    assert switch.next_ns() is None


def test_frames_to_one_host_leave_in_the_order_in_which_they_came() -> None:
    switch = router(rate=10**6, burst=1500)
    sent = [frame(1, 100 + i) for i in range(20)]
    for one in sent:
        switch.take(one, 0)
    assert [f for _, f in switch.due(10**12)] == sent


def test_a_full_link_to_one_host_does_not_hold_up_another() -> None:
    switch = router(rate=10**6, burst=1500)
    for _ in range(20):
        switch.take(frame(1, 1500), 0)
    switch.take(frame(2), 0)
    assert 12 in [fd for fd, _ in switch.due(MS)]


def test_a_bucket_passes_its_burst_at_once_and_then_keeps_its_rate() -> None:
    bucket = TokenBucket(8_000_000, 10_000)  # a byte a microsecond
    times = [bucket.pass_at(0, 1000) for _ in range(20)]
    assert times[:10] == [0] * 10
    assert times[10:] == [i * MS for i in range(1, 11)]
    assert bucket.pass_at(100 * MS, 1000) == 100 * MS, "full again after a pause"


def test_a_packet_larger_than_the_burst_passes_all_the_same() -> None:
    bucket = TokenBucket(8_000_000, 1000)
    assert bucket.pass_at(0, 5000) == 0
    assert bucket.pass_at(0, 5000) == 5 * MS


def test_a_train_of_segments_counts_the_headers_of_each() -> None:
    assert wire_bytes(frame(1, 1514)) == 1514
    assert wire_bytes(frame(1, segment=1448, payload=10 * 1448)) == 10 * 1514
    assert wire_bytes(frame(1, segment=1448, payload=10 * 1448 + 1)) == 10 * 1514 + 66 + 1


def test_a_frame_to_nobody_here_is_dropped() -> None:
    switch = router()
    switch.take(frame(7), 0)
    multicast = bytearray(frame(1))
    multicast[VNET_BYTES] = 0x33
    switch.take(bytes(multicast), 0)
    assert switch.due(sys.maxsize) == []

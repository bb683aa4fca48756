"""The commands that make a network, word by word.

What ranks of an emulated network are told, and how their end is reported.

The delaying switch without devices: what it counts, when it lets go, and in which order.
"""

from __future__ import annotations

import signal
import struct
import subprocess
import sys
from pathlib import Path

from stepscope.launch.ends.cell import exit_codes, first_seen
from stepscope.launch.netns.plan import NetworkStep, hosts_file, plan
from stepscope.launch.netns.router import VNET_BYTES, Port, Router, TokenBucket, wire_bytes
from stepscope.launch.netns.world import Rank, command_of_ranks, end_ranks, environments, failure_report
from stepscope.records.network import parse_network


def lines(text: str, hosts: int) -> list[str]:
    return [str(step) for step in plan(parse_network(text), hosts)]


def test_two_hosts_and_a_bridge_are_made_like_this() -> None:
    assert lines("1gbit:2,slow=1:200mbit", 2) == [
        "[switch] ip link add br0 mtu 1500 type bridge",
        "[switch] ip link set br0 up",
        "[host0] net/ipv4/tcp_congestion_control = reno",
        "[host0] net/ipv4/tcp_slow_start_after_idle = 0",
        "[host0] net/ipv4/tcp_no_metrics_save = 1",
        "[host0] net/ipv6/conf/all/disable_ipv6 = 1",
        "[host0] ip link set lo up",
        "[switch] ip link add port0 mtu 1500 type veth peer name eth0 netns host0",
        "[switch] tc qdisc add dev port0 root tbf rate 1000000000bit burst 125000b latency 200ms",
        "[switch] ip link set port0 master br0 up",
        "[host0] ip link set eth0 address 02:00:00:00:00:00 mtu 1500 txqueuelen 1000 gso_max_size 31250",
        "[host0] ip addr add 10.77.0.1/24 dev eth0",
        "[host0] tc qdisc add dev eth0 root tbf rate 1000000000bit burst 125000b latency 200ms",
        "[host0] ip link set eth0 up",
        "[host0] ip neigh add 10.77.0.2 lladdr 02:00:00:00:00:01 dev eth0",
        "[host1] net/ipv4/tcp_congestion_control = reno",
        "[host1] net/ipv4/tcp_slow_start_after_idle = 0",
        "[host1] net/ipv4/tcp_no_metrics_save = 1",
        "[host1] net/ipv6/conf/all/disable_ipv6 = 1",
        "[host1] ip link set lo up",
        "[switch] ip link add port1 mtu 1500 type veth peer name eth0 netns host1",
        "[switch] tc qdisc add dev port1 root tbf rate 200000000bit burst 32768b latency 200ms",
        "[switch] ip link set port1 master br0 up",
        "[host1] ip link set eth0 address 02:00:00:00:00:01 mtu 1500 txqueuelen 1000 gso_max_size 8192",
        "[host1] ip addr add 10.77.0.2/24 dev eth0",
        "[host1] tc qdisc add dev eth0 root tbf rate 200000000bit burst 32768b latency 200ms",
        "[host1] ip link set eth0 up",
        "[host1] ip neigh add 10.77.0.1 lladdr 02:00:00:00:00:00 dev eth0",
    ]


def test_with_a_delay_hosts_have_tap_devices_and_there_is_no_bridge() -> None:
    steps = plan(parse_network("1gbit:3,delay=1ms"), 3)
    assert [step for step in steps if step.line.startswith("tap")] == [
        NetworkStep(f"host{i}", "tap eth0") for i in range(3)
    ]
    assert all(step.where != "switch" for step in steps)


def test_every_command_names_a_namespace_of_the_plan() -> None:
    names = {"switch", *(f"host{i}" for i in range(8))}
    for step in plan(parse_network("1gbit:8"), 8):
        assert step.where in names
        if "netns" in step.line:
            assert step.line.split(" netns ")[1] in names


def test_every_host_has_a_name_in_both_forms_of_its_address() -> None:
    assert hosts_file(2).splitlines() == [
        "127.0.0.1 localhost", "10.77.0.1 host0", "::ffff:10.77.0.1 host0", "10.77.0.2 host1", "::ffff:10.77.0.2 host1",
    ]  # fmt: skip


def test_a_rank_knows_its_place_on_its_host_and_in_the_world() -> None:
    found = environments((0, 0, 1, 1, 1))
    assert [(e["RANK"], e["LOCAL_RANK"], e["LOCAL_WORLD_SIZE"], e["GROUP_RANK"]) for e in found] == [
        ("0", "0", "2", "0"), ("1", "1", "2", "0"), ("2", "0", "3", "1"), ("3", "1", "3", "1"), ("4", "2", "3", "1"),
    ]  # fmt: skip
    assert {e["WORLD_SIZE"] for e in found} == {"5"}
    assert {(e["MASTER_ADDR"], e["GLOO_SOCKET_IFNAME"]) for e in found} == {("10.77.0.1", "eth0")}


def ended(rank: int, code: int) -> Rank:
    line = f"import os; os.kill(os.getpid(), {-code})" if code < 0 else f"import sys; sys.stdin.close(); exit({code})"
    process = subprocess.Popen([sys.executable, "-c", line])
    process.wait()
    return Rank(rank, rank % 2, rank // 2, process)


def test_the_report_of_a_failure_is_read_as_torchruns_is() -> None:
    ranks = [ended(0, -15), ended(1, 0), ended(2, -9), ended(3, 7)]
    report = failure_report(ranks, ranks[3])
    assert exit_codes(report) == {0: -15, 2: -9, 3: 7}
    assert first_seen(report) == 3


def test_a_rank_that_ignores_sigterm_is_killed() -> None:
    line = "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", line], stdout=subprocess.PIPE)
    process.stdout.readline()
    end_ranks([Rank(0, 0, 0, process)], grace_s=0.2)
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL


def test_the_launcher_gets_the_ranks_command_after_its_own_options() -> None:
    line = command_of_ranks(
        "1gbit:2", parent=7, world_size=4, log_dir=Path("/run/logs"), error_file=Path("/run/e"), argv=["prog", "--flag"]
    )
    assert line[:3] == [sys.executable, "-m", "stepscope.launch.netns.world"]
    assert line[line.index("--world-size") + 1] == "4"
    assert line[-3:] == ["--", "prog", "--flag"]


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

"""The commands that make a network, word by word."""

from stepscope.launch.netns.plan import NamespaceCommand, Tap, hosts_file, plan
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
    assert [step for step in steps if isinstance(step, Tap)] == [Tap(f"host{i}", "eth0") for i in range(3)]
    assert all(step.where != "switch" for step in steps)


def test_every_command_names_a_namespace_of_the_plan() -> None:
    names = {"switch", *(f"host{i}" for i in range(8))}
    for step in plan(parse_network("1gbit:8"), 8):
        assert step.where in names
        if isinstance(step, NamespaceCommand) and "netns" in step.argv:
            assert step.argv[step.argv.index("netns") + 1] in names


def test_every_host_has_a_name_in_both_forms_of_its_address() -> None:
    assert hosts_file(2).splitlines() == [
        "127.0.0.1 localhost", "10.77.0.1 host0", "::ffff:10.77.0.1 host0", "10.77.0.2 host1", "::ffff:10.77.0.2 host1",
    ]  # fmt: skip

"""Nodes side by side, on made facts: what is said to differ, and which node is odd."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from tests.machines import cuda_torch, gpu, server

from stepscope.machine.nodes import CLOCKS_APART_NS, NodeDifference, NodeFacts, differences, shared
from stepscope.records.environment import NicFact

GIB = 2**30


def node(name: str, *, clock_ns: int | None = 0, interface: str | None = "eth0", **changes: Any) -> NodeFacts:
    record = server(8, **{"host": name, "packages": {"stepscope": "0.1.0"}} | changes)
    return NodeFacts(name=name, environment=record, clock_ns=clock_ns, clock_error_ns=200_000, interface=interface)


def four(**odd: Any) -> list[NodeFacts]:
    """d is the odd one."""
    return [node("a"), node("b"), node("c"), node("d", **odd)]


def only(nodes: list[NodeFacts]) -> NodeDifference:
    (found,) = differences(nodes)
    return found


def test_of_equal_nodes_nothing_is_said() -> None:
    assert differences(four()) == ()
    assert ("GPUs", "8x NVIDIA H100 80GB HBM3") in shared(four())


ODD: dict[str, dict[str, Any]] = {
    "torch": {"torch": cuda_torch(8, version="2.6.0+cu130")},
    "nccl": {"torch": cuda_torch(8, nccl_version="2.21.5")},
    "cuda": {"torch": cuda_torch(8, cuda_version="12.4")},
    "python": {"python": "3.11.2"},
    "stepscope": {"packages": {"stepscope": "0.0.9"}},
    "driver": {"gpus": tuple(gpu(i, driver_version="550.54") for i in range(8))},
    "gpus": {"gpus": tuple(gpu(i) for i in range(7))},
    "power_limit": {"gpus": tuple(gpu(i, power_limit_w=500.0) for i in range(8))},
    "pcie": {"gpus": tuple(gpu(i, pcie_width=8 if i == 3 else 16) for i in range(8))},
    "kernel": {"kernel": "5.15.0"},
    "cpu": {"cpu_model": "Another CPU"},
    "cores": {"usable_cores": 4},
    "memory": {"memory_bytes": 8 * GIB},
    "ntp": {"clock_synchronised": False},
    "variable NCCL_IB_DISABLE": {"variables": {"OMP_NUM_THREADS": "8", "NCCL_IB_DISABLE": "1"}},
    "variable OMP_NUM_THREADS": {"variables": {}},
}


@pytest.mark.parametrize("key", ODD)
def test_the_odd_one_of_four_is_named_with_the_command_that_shows_it(key: str) -> None:
    nodes = four(**ODD[key])
    if key == "ntp":
        nodes = [*(with_facts(each, clock_synchronised=True) for each in nodes[:3]), nodes[3]]
    found = only(nodes)
    assert (found.key, found.odd) == (key, ("d",))
    assert found.command
    assert found.sentence.startswith("d: ")
    assert "the other 3: " in found.sentence


def with_facts(found: NodeFacts, **changes: Any) -> NodeFacts:
    return dataclasses.replace(found, environment=dataclasses.replace(found.environment, **changes))


def test_two_nodes_differ_and_none_of_them_is_called_odd() -> None:
    found = only([node("a"), node("b", kernel="5.15.0")])
    assert found.odd == ()
    assert found.values == {"a": "6.12.0", "b": "5.15.0"}
    halves = only([*four()[:2], node("c", kernel="5.15.0"), node("d", kernel="5.15.0")])
    assert halves.odd == ()


def test_what_is_unknown_on_a_node_is_no_difference() -> None:
    assert differences(four(topology=None, cpu_model=None)) == ()
    assert "CPU" not in dict(shared(four(cpu_model=None)))


def test_memory_that_the_firmware_keeps_is_no_difference() -> None:
    size = node("a").environment.memory_bytes
    assert differences(four(memory_bytes=round(size * 0.98))) == ()
    assert only(four(memory_bytes=round(size * 0.9))).odd == ("d",)


def nics(mtu: int, speed: int = 10**10) -> tuple[NicFact, ...]:
    return (
        NicFact(name="docker0", kind="virtual", speed_bits_per_s=None, up=True, mtu_bytes=1500),
        NicFact(name="eth0", kind="ethernet", speed_bits_per_s=speed, up=True, mtu_bytes=mtu),
        NicFact(name="eth9", kind="ethernet", speed_bits_per_s=10**9, up=False, mtu_bytes=1500),
    )


def test_the_mtu_of_the_interface_that_reaches_the_others_counts() -> None:
    nodes = [node(name, nics=nics(9000)) for name in "abc"]
    assert differences([*nodes, node("d", nics=nics(9000))]) == ()
    found = only([*nodes, node("d", nics=nics(1500))])
    assert (found.key, found.odd, found.values["d"]) == ("mtu", ("d",), "1500")
    slower = only([*nodes, node("d", nics=nics(9000, speed=10**9))])
    assert (slower.key, slower.odd) == ("nics", ("d",))


def test_links_are_compared_by_kind_and_number() -> None:
    torn = server(8, cell="NV12").topology
    found = only(four(topology=torn))
    assert (found.key, found.odd, found.values["d"]) == ("links", ("d",), "NV12 between 28 pairs")


def test_a_clock_apart_by_more_than_ntp_and_the_measurement_allow_is_named() -> None:
    assert differences(four(clock_ns=CLOCKS_APART_NS)) == ()
    found = only(four(clock_ns=CLOCKS_APART_NS + 300_000))
    assert (found.key, found.odd) == ("clocks", ("d",))
    pair = only([node("a"), node("b", clock_ns=-3 * 10**9)])
    assert (pair.key, pair.odd) == ("clocks", ())
    assert differences([node("a"), node("b", clock_ns=None)]) == ()


def test_ranks_variables_of_a_launcher_differ_as_they_should() -> None:
    assert differences(four(variables={"OMP_NUM_THREADS": "8", "SLURM_NODEID": "3", "CUDA_VISIBLE_DEVICES": "1"})) == ()

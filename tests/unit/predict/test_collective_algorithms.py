"""Costs of NCCL's algorithms against the definitions, and what bounds them."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest

from stepscope.core.errors import UsageError
from stepscope.predict.collectives import constants
from stepscope.predict.collectives import machine as machines
from stepscope.predict.collectives.algorithms import (
    halving_steps,
    halving_wire_factor,
    ring_latency_us,
    switch_rate,
    tree_latency_us,
)
from stepscope.predict.collectives.choose import OPS, candidates, known_gpu, predict_collective
from stepscope.predict.collectives.costs import AlgorithmCost
from stepscope.predict.collectives.machine import FABRICS, Place, find_fabric, place, read_fabric

MIB = 2**20


def machine(
    gpu: str = "a100-sxm4-80gb", *, n: int = 8, per_node: int = 8, network: str | None = None, sharp: bool = False
) -> Place:
    return place(
        known_gpu(gpu),
        n_gpus=n,
        gpus_per_node=per_node,
        fabric=None if network is None else find_fabric(network),
        adapters_per_node=None,
        sharp=sharp,
        caller="nccl-tests",
    )


def of(op: str, size: int, where: Place, algorithm: str, protocol: str = "Simple") -> AlgorithmCost:
    found = [c for c in candidates(op, size, where) if c.algorithm == algorithm and c.protocol == protocol]
    assert len(found) == 1, [c.name for c in candidates(op, size, where)]
    return found[0]


def test_a_ring_moves_the_bytes_of_the_definition_at_the_links_rate() -> None:
    where = machine(n=8)
    rate = 12 * 20.0 * constants.RING_SHARE  # NCCL counts 20 GB/s of each of 12 links
    for op, factor in (("all_reduce", 2 * 7 / 8), ("all_gather", 7 / 8), ("reduce_scatter", 7 / 8), ("broadcast", 1)):
        ours = of(op, 64 * MIB, where, "ring")
        assert ours.transfer_us == pytest.approx(64 * MIB * factor / rate / 1e3), op


@pytest.mark.parametrize(("op", "steps"), [("all_reduce", 14), ("all_gather", 7), ("reduce_scatter", 7)])
def test_a_ring_on_one_node_waits_once_a_step(op: str, steps: int) -> None:
    base, step = constants.RING.base_us[0], constants.RING.link_us[0]
    assert ring_latency_us(op, machine(n=8), 0) == pytest.approx(base + steps * step)


def test_a_ring_over_nodes_crosses_every_boundary_but_one_in_each_lap() -> None:
    one, two = machine(n=8), machine(n=16, network="infiniband-hdr")
    assert two.domains == 2
    extra = ring_latency_us("all_gather", two, 0) - ring_latency_us("all_gather", one, 0)
    post = constants.NET_OVERHEAD_US
    step, hop = constants.RING.link_us[0], constants.RING.net_us[0]
    assert extra == pytest.approx(14 * post + hop - 7 * step)


def test_a_tree_waits_for_the_logarithm_of_the_nodes() -> None:
    hop = constants.TREE.net_us[0]
    at = {nodes: tree_latency_us(machine(n=8 * nodes, network="infiniband-hdr"), 0) for nodes in (2, 4, 8, 16)}
    assert [at[n] - at[n // 2] for n in (4, 8, 16)] == pytest.approx([2 * hop] * 3)


def test_a_tree_carries_twice_the_bytes() -> None:
    where = machine("v100-sxm3-32gb", n=8)
    ours = of("all_reduce", 256 * MIB, where, "tree")
    gen = where.generation
    rate = min(where.ring * constants.TREE_RATE, gen.channels * gen.tree_channel[0])
    assert ours.transfer_us == pytest.approx(2 * 256 * MIB / rate / 1e3)


def test_the_adapters_of_a_node_bound_a_tree_less_between_two_nodes_than_among_more() -> None:
    two = of("all_reduce", 2**30, machine("a100-sxm4-80gb", n=16, network="efa-p4d"), "tree")
    four = of("all_reduce", 2**30, machine("a100-sxm4-80gb", n=32, network="efa-p4d"), "tree")
    assert four.transfer_us == pytest.approx(2 * two.transfer_us)


@pytest.mark.parametrize("n", [2, 4, 8, 64])
def test_halving_and_doubling_has_the_bytes_of_a_ring_and_the_steps_of_a_tree(n: int) -> None:
    assert halving_wire_factor("all_reduce", n) == pytest.approx(2 * (n - 1) / n)
    assert halving_steps("all_reduce", n) == 2 * math.log2(n)
    assert halving_steps("all_gather", n) == math.log2(n)


def test_the_switch_reduces_only_where_there_is_one() -> None:
    assert switch_rate(machine("h100-sxm", n=8)) > 0
    for gpu, per_node in (("a100-sxm4-80gb", 8), ("gh200-96gb", 4), ("mi300x", 8), ("h100-pcie", 8)):
        assert switch_rate(machine(gpu, n=per_node, per_node=per_node)) == 0, gpu


def test_the_switch_beats_the_links_at_eight_gpus_and_not_at_four() -> None:
    eight = predict_collective("all_reduce", 2**33, n_gpus=8, gpu="h200-sxm")
    four = predict_collective("all_reduce", 2**33, n_gpus=4, gpu="h200-sxm", gpus_per_node=8)
    assert (eight.algorithm, four.algorithm) == ("nvls", "ring")


def test_bus_bandwidth_above_the_link_is_what_in_network_reduction_gives() -> None:
    plain = predict_collective(
        "all_reduce", 2**33, n_gpus=64, gpu="h100-sxm", gpus_per_node=8, inter_node="infiniband-ndr"
    )
    sharp = predict_collective(
        "all_reduce", 2**33, n_gpus=64, gpu="h100-sxm", gpus_per_node=8, inter_node="infiniband-ndr", sharp=True
    )
    assert plain.busbw_bytes_per_s is not None
    assert sharp.busbw_bytes_per_s is not None
    assert plain.busbw_bytes_per_s < 400e9 < sharp.busbw_bytes_per_s
    assert sharp.algorithm == "nvls_sharp"


def test_ll_is_bounded_by_its_table_and_never_used_where_the_fabric_forbids_it() -> None:
    where = machine("h100-sxm", n=8)
    ll = of("all_reduce", 2**30, where, "ring", "LL")
    assert 2**30 * 1.75 / 1e3 / ll.transfer_us == pytest.approx(constants.GENERATIONS["hopper"].ll_max[0])
    over = machine("h100-sxm", n=16, network="gpudirect-tcpxo")
    assert "LL" not in {c.protocol for c in candidates("all_reduce", 1024, over)}


@pytest.mark.parametrize("gpu", ["h100-pcie", "l40s", "rtx-4090"])
def test_ll128_is_never_offered_over_pcie(gpu: str) -> None:
    assert "LL128" not in {c.protocol for c in candidates("all_reduce", 1024, machine(gpu, n=4))}


def test_protocols_follow_each_other_as_messages_grow() -> None:
    order = [
        predict_collective("all_gather", size, n_gpus=8, gpu="a100-sxm4-80gb").protocol
        for size in (1024, 8 * MIB, 1024 * MIB)
    ]
    assert order == ["LL", "LL128", "Simple"]


@pytest.mark.parametrize("op", [op for op in OPS if op != "barrier"])
@pytest.mark.parametrize(
    ("gpu", "n", "network"),
    [("h100-sxm", 8, None), ("h100-sxm", 64, "infiniband-ndr"), ("a100-sxm4-80gb", 16, "efa-p4d"), ("mi300x", 8, None),
     ("mi300x", 32, "roce-400g"), ("l40s", 4, None), ("gb200", 144, "infiniband-ndr"), ("v100-sxm2-16gb", 2, None)],
)  # fmt: skip
def test_no_candidate_gets_faster_as_messages_grow(op: str, gpu: str, n: int, network: str | None) -> None:
    where = machine(gpu, n=n, network=network)
    before: dict[str, float] = {}
    for size in (2**k for k in range(35)):
        for one in candidates(op, size, where):
            assert math.isfinite(one.time_us)
            assert one.time_us > 0
            assert one.time_us >= before.get(one.name, 0.0) * (1 - 1e-9), (one.name, size)
            before[one.name] = one.time_us


@pytest.mark.parametrize("op", OPS)
def test_every_op_is_predicted_with_an_interval_around_it(op: str) -> None:
    for n, network in ((2, None), (8, None), (64, "infiniband-ndr"), (1440, None)):
        ours = predict_collective(op, 2**20, n_gpus=n, gpu="h100-sxm", gpus_per_node=8, inter_node=network)
        assert 0 < ours.low_ns < ours.time_ns < ours.high_ns
        assert ours.why
        assert (ours.busbw_bytes_per_s is None) == (op == "barrier")


def test_more_nodes_are_never_faster_at_the_same_size() -> None:
    for size in (8, 2**20, 2**30):
        times = [
            predict_collective(
                "all_reduce", size, n_gpus=8 * nodes, gpu="h100-sxm", gpus_per_node=8, inter_node="infiniband-ndr"
            ).time_ns
            for nodes in (1, 2, 4, 16, 64)
        ]
        assert times == sorted(times), size


def test_an_unknown_network_is_said_and_widens_the_interval() -> None:
    known = predict_collective(
        "all_reduce", 2**28, n_gpus=16, gpu="h100-sxm", gpus_per_node=8, inter_node="infiniband-ndr"
    )
    guessed = predict_collective("all_reduce", 2**28, n_gpus=16, gpu="h100-sxm", gpus_per_node=8)
    assert guessed.high_ns / guessed.time_ns > known.high_ns / known.time_ns
    assert any("network not given" in note for note in guessed.notes)
    assert known.notes == ()


def test_a_mesh_of_eight_has_seven_rings_and_eight_when_they_leave_the_node() -> None:
    one, four = machine("mi325x", n=8), machine("mi325x", n=32, network="roce-400g")
    assert one.ring == pytest.approx(7 * 48 * constants.MESH_SHARE)
    assert four.ring == pytest.approx(8 * 48 * constants.MESH_SHARE)
    assert machine("mi300x", n=2, per_node=8).ring == pytest.approx(48 * constants.MESH_SHARE)


def test_an_nvlink_rack_is_one_domain() -> None:
    assert machine("gb200", n=72, per_node=4).domains == 1
    assert machine("gb200", n=144, per_node=4, network="infiniband-ndr").domains == 2
    assert machine("b200", n=72, network="infiniband-ndr").domains == 9


def test_one_rank_has_nobody_to_talk_to() -> None:
    assert predict_collective("all_reduce", 2**20, n_gpus=1, gpu="h100-sxm").time_ns == 0


def test_a_waiting_torch_caller_pays_for_the_call() -> None:
    queued = predict_collective("all_reduce", 1024, n_gpus=8, gpu="h100-sxm")
    waited = predict_collective("all_reduce", 1024, n_gpus=8, gpu="h100-sxm", caller="torch")
    assert waited.time_ns - queued.time_ns == pytest.approx(constants.TORCH_CALL_US * 1e3)


def test_a_forced_algorithm_is_used() -> None:
    ours = predict_collective("all_reduce", 2**33, n_gpus=8, gpu="h100-sxm", algorithm="ring")
    assert ours.algorithm == "ring"
    assert ours.why.startswith("asked for")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"op": "allreduc"}, "did you mean 'all_reduce'"),
        ({"gpu": "h100-smx"}, "did you mean 'h100-sxm'"),
        ({"gpu": "H100"}, "say which"),
        ({"inter_node": "infinband-ndr"}, "did you mean 'infiniband-ndr'"),
        ({"dtype": "flot32"}, "did you mean 'float32'"),
        ({"algorithm": "rign"}, "did you mean 'ring'"),
        ({"caller": "torhc"}, "did you mean 'torch'"),
        ({"n_gpus": 0}, "cannot hold"),
        ({"size_bytes": -1}, "-1 bytes"),
        ({"gpus_per_node": 0}, "0 GPUs per node"),
    ],
)
def test_what_cannot_be_is_refused_with_what_was_meant(change: dict[str, object], said: str) -> None:
    asked: dict[str, object] = {"op": "all_reduce", "size_bytes": 1024, "n_gpus": 16, "gpu": "h100-sxm", **change}
    op, size = asked.pop("op"), asked.pop("size_bytes")
    with pytest.raises(UsageError, match=said):
        predict_collective(op, size, **asked)  # type: ignore[arg-type]


def test_other_tools_spellings_of_ops_are_understood() -> None:
    for name, op in (("alltoall", "all_to_all"), ("sendrecv", "send_recv"), ("AllReduce", "all_reduce")):
        ours = predict_collective(name, 2**20, n_gpus=8, gpu="h100-sxm")
        assert ours == predict_collective(op, 2**20, n_gpus=8, gpu="h100-sxm")


@pytest.mark.parametrize(
    ("text", "gpu", "key", "node_bytes_per_s"),
    [
        ("EFA (instance spec 400 Gbps/node)", "a100-sxm4-80gb", "efa-p4d", 50e9),
        ("GPUDirect-TCPXO", "h100-sxm", "gpudirect-tcpxo", 8 * 25e9),
        ("HPE Slingshot (OFI plugin)", "gh200-96gb", "slingshot-11", None),
        ("InfiniBand NDR", "h100-sxm", "infiniband-ndr", None),
        ("InfiniBand (SHARP manifest)", "h100-sxm", "infiniband", None),
        ("RDMA cluster network (RoCE)", "a100-sxm4-40gb", "roce", None),
        ("8x 400G RoCE", "h100-sxm", "roce", 8 * 50e9),
        ("8x 50GBps EFA v4", "b200", "efa-p6-b200", 8 * 50e9),
        ("8x 12.50GBps InfiniBand HDR", "h100-sxm", "infiniband-hdr", 8 * 12.5e9),
        ("EFA, 12.50 Gbps/node", "a100-sxm4-80gb", "efa-p4d", 12.5e9 / 8),
        ("1600 Gbps RoCE", "a100-sxm4-40gb", "roce", 200e9),
        ("4x Omni-Path 100 Gb/s per node (stated elsewhere)", "a100-sxm4-80gb", "omni-path", 4 * 12.5e9),
    ],
)
def test_a_network_is_read_from_a_tables_words(text: str, gpu: str, key: str, node_bytes_per_s: float | None) -> None:
    found = read_fabric(text, gpu_key=gpu)
    assert found is not None
    assert found.key == key
    if node_bytes_per_s is not None:
        assert (found.adapter_bytes_per_s or 0) * (found.adapters_per_node or 0) == pytest.approx(node_bytes_per_s)


def test_a_mistyped_network_lists_all() -> None:
    with pytest.raises(UsageError) as told:
        find_fabric("efa-p7")
    assert all(fabric.key in str(told.value.fix) for fabric in FABRICS)


def test_words_that_name_no_network_are_none() -> None:
    assert read_fabric("", gpu_key="h100-sxm") is None
    assert read_fabric("carrier pigeon", gpu_key="h100-sxm") is None


def test_every_fabric_says_where_its_figures_come_from() -> None:
    table = Path(machines.__file__).with_name("fabrics.csv").read_text(encoding="utf-8")
    assert all(row["share_source"] and row["latency_source"] for row in csv.DictReader(table.splitlines()))
    assert len({fabric.key for fabric in FABRICS}) == len(FABRICS)

"""NCCL's debug log on logs of real jobs: figures equal to what a search of their own text counts."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from stepscope.core.errors import DataError
from stepscope.records.nccl import NcclCommunicator, NcclDebug
from stepscope.store.importers.nccl_debug import read_nccl_debug

SHARED = Path(__file__).parents[3].parent / "shared" / "data"
LOGS = SHARED / "nccl_debug"
A100, V100X16, V100X4 = "a100pcie_x2_nccl2.27.7.log", "v100x16_4node_nccl.txt", "v100x4_32gb_nccl2.7.8.txt"

pytestmark = [
    pytest.mark.shared_data,
    pytest.mark.skipif(not LOGS.is_dir(), reason=f"no real logs at {LOGS}"),
]

LINK = re.compile(r"Channel (\d+)(?:/0)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[\w+\])? via (\S+(?: pointer/read)?)")
DONE = re.compile(
    r"^([\w-]+):(\d+):.* comm \S+ rank (\d+) nranks (\d+) cudaDev (\d) .*busId (\w+) .*Init COMPLETE", re.M
)


def read(name: str) -> tuple[NcclDebug, NcclCommunicator, str]:
    found = read_nccl_debug(LOGS / name)
    (comm,) = found.communicators
    return found, comm, (LOGS / name).read_text()


@pytest.mark.parametrize(
    ("name", "version", "nranks", "hosts", "channels", "p2p"),
    [
        (A100, "2.27.7+cuda13.0", 2, 1, 24, (32, 32)),
        (V100X16, "2.10.3+cuda11.3", 16, 4, 4, (4, 1)),
        (V100X4, "2.7.8+cuda10.2", 4, 1, 12, (16, 4)),
    ],
)
def test_head_figures(name: str, version: str, nranks: int, hosts: int, channels: int, p2p: tuple[int, int]) -> None:
    found, comm, text = read(name)
    assert found.versions == comm.versions == (version,)
    assert (comm.nranks, len({r.host for r in comm.ranks}), comm.networks) == (nranks, hosts, ("IB",))
    assert (comm.coll_channels, comm.p2p_channels, comm.p2p_channels_per_peer) == (channels, *p2p)
    assert [(r.channel, r.complete) for r in comm.rings] == [(c, True) for c in range(channels)]
    assert [(t.channel, t.parents.count(None)) for t in comm.trees] == [(c, 0) for c in range(channels)]
    assert comm.missing_ranks == ()
    assert found.net_plugins == ()
    assert found.messages == found.notes == ()
    assert found.files[0].lines == text.count("\n")
    assert found.files[0].nccl_lines == text.count("NCCL INFO") + text.count("\nNCCL version")


@pytest.mark.parametrize("name", [A100, V100X16, V100X4])
def test_ranks_are_those_whose_init_is_reported_complete(name: str) -> None:
    _, comm, text = read(name)
    mine = [(r.host, str(r.pid), str(r.rank), str(comm.nranks), str(r.cuda_device), r.bus_id) for r in comm.ranks]
    assert mine == sorted(DONE.findall(text), key=lambda row: int(row[2]))
    assert all(r.initialised for r in comm.ranks)


@pytest.mark.parametrize("name", [A100, V100X16, V100X4])
def test_links_have_the_channels_that_their_lines_name(name: str) -> None:
    _, comm, text = read(name)
    expected: dict[tuple[int, int, str], set[str]] = defaultdict(set)
    for channel, source, destination, via in LINK.findall(text):
        expected[int(source), int(destination), re.sub(r"^(NET/IB)/\d$", r"\1", via)].add(channel)
    assert {(e.source, e.destination, e.transport): e.channels for e in comm.links} == {
        key: len(channels) for key, channels in expected.items()
    }
    assert expected


def test_network_links_join_hosts_and_name_both_nics() -> None:
    _, comm, _ = read(V100X16)
    host = {r.rank: r.host for r in comm.ranks}
    for link in comm.links:
        crosses = host[link.source] != host[link.destination]
        assert crosses == (link.transport == "NET/IB")
        assert link.gdrdma is (False if crosses else None)
        assert bool(link.send_nics) == bool(link.receive_nics) == crosses
    (hop,) = (e for e in comm.links if (e.source, e.destination) == (15, 0))
    assert (hop.channels, hop.send_nics, hop.receive_nics) == (2, (3,), (1,))


@pytest.mark.parametrize("name", [V100X16, V100X4])
def test_every_rank_is_among_its_parents_children(name: str) -> None:
    _, comm, text = read(name)
    children: dict[tuple[int, int], list[int]] = {}
    for line in re.findall(r"INFO Trees (.*)", text):
        for channel, below, rank in re.findall(r"\[(\d+)\] (-?\d+/-?\d+/-?\d+)->(\d+)->", line):
            children[int(channel), int(rank)] = [int(n) for n in below.split("/") if n != "-1"]
    for tree in comm.trees:
        assert tree.parents.count(-1) == 1
        for rank, parent in enumerate(tree.parents):
            assert parent is not None
            if parent >= 0:
                assert rank in children[tree.channel, parent]


def test_choices_count_what_the_text_says() -> None:
    found, comm, text = read(A100)
    said = Counter(re.findall(r"AllReduce: (\d+) Bytes -> Algo RING proto SIMPLE channel\{Lo..Hi\}=\{0..23\}", text))
    assert {c.low_bytes: c.calls for c in comm.choices} == {int(size): n for size, n in said.items()}
    assert {(c.op, c.algorithm, c.protocol, c.channels) for c in comm.choices} == {
        ("AllReduce", "Ring", "Simple", (0, 23))
    }
    assert sum(said.values()) == 495
    assert (comm.id, comm.nodes, comm.nvls_channels) == ("0x54fe282d32a87d85", 1, 0)
    assert {r.ended for r in comm.ranks} == {"destroyed"}
    assert found.settings == (("NCCL_TOPO_DUMP_FILE", "nccl_topo_dump.xml"),)
    assert found.hosts[0].no_gdr_nics == ("mlx5_0", "mlx5_1", "mlx5_0+mlx5_1")


def test_the_whole_folder_is_read_and_what_is_no_log_is_said() -> None:
    found = read_nccl_debug(LOGS)
    assert sorted(c.nranks or 0 for c in found.communicators) == [2, 4, 16]
    assert {note.partition(":")[0] for note in found.notes if note.endswith("left out")} == {
        "README.md",
        "a100pcie_x2_nccl_topo_dump.xml",
    }


@pytest.mark.parametrize("path", sorted((SHARED / "nccl_tests").glob("*.log")), ids=lambda p: p.name)
def test_logs_without_nccls_account_are_refused_with_a_reason(path: Path) -> None:
    with pytest.raises(DataError, match=r"not an NCCL log|do not mention communicators") as raised:
        read_nccl_debug(path)
    assert raised.value.why
    assert "NCCL_DEBUG=INFO" in (raised.value.fix or "")

"""NCCL's debug log on logs of real jobs: figures equal to what a search of their own text counts."""

from __future__ import annotations

import re
from collections import Counter
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

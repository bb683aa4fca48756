from __future__ import annotations

from pathlib import Path

import pytest
from tests.machines import reason

from stepscope.machine.topology import LINK_KINDS, Topology, has_nvswitch, parse_topology

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "topo"

needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the real topology files do not lie beside the checkout")

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""


def parsed(text: str) -> Topology:
    topology = parse_topology(text)
    assert isinstance(topology, Topology), topology
    return topology


def matrix(rows: list[list[str]], *, affinity: bool = True) -> str:
    """A tab-separated matrix of GPUs; X on the diagonal is put in."""
    names = [f"GPU{i}" for i in range(len(rows))]
    lines = ["\t" + "\t".join(names) + ("\tCPU Affinity\tNUMA Affinity" if affinity else "")]
    for i, row in enumerate(rows):
        cells = [" X " if i == j else cell for j, cell in enumerate(row)]
        lines.append("\t".join([names[i], *cells]) + ("\t0-31\t0" if affinity else ""))
    return "\n".join(lines) + "\n"


def uniform(n: int, cell: str) -> str:
    return matrix([[cell] * n for _ in range(n)])


NICS = """\
\x1b[4m\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tSYS\t0-3,8-11\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tPXB\t4-7,12-15\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tSYS\t\t\t\t
NIC1\tSYS\tPXB\tSYS\t X \t\t\t\t
"""


def test_links_nics_affinity_and_nic_names_are_read_through_terminal_escapes() -> None:
    topology = parsed(NICS + LEGEND + "\nNIC Legend:\n\n  NIC0: mlx5_0\n  NIC1: mlx5_1\n")
    assert [gpu.name for gpu in topology.gpus] == ["GPU0", "GPU1"]
    assert [(nic.name, nic.label) for nic in topology.nics] == [("NIC0", "mlx5_0"), ("NIC1", "mlx5_1")]
    assert topology.link("GPU0", "GPU1").label == "NV18"  # type: ignore[union-attr]
    assert topology.link("GPU1", "NIC1").kind == "PXB"  # type: ignore[union-attr]
    assert topology.gpus[0].cpu_affinity == (0, 1, 2, 3, 8, 9, 10, 11)
    assert [gpu.numa_affinity for gpu in topology.gpus] == [(0,), (1,)]
    assert topology.nearest_nics("GPU0") == ("NIC0",)
    assert topology.nearest_nics("GPU1") == ("NIC1",)
    assert topology.problems == ()


@pytest.mark.parametrize("cell", ["PIX", "PXB", "PHB", "NODE", "SYS"])
def test_the_legend_is_not_a_link(cell: str) -> None:
    topology = parsed(uniform(3, cell) + LEGEND)
    assert topology.fast_pairs() == ()
    assert topology.pairs_of_kind(cell) == topology.gpu_pairs()
    assert topology.nvlink_islands() == (("GPU0",), ("GPU1",), ("GPU2",))
    assert has_nvswitch(topology) is False


def test_names_of_older_drivers_are_todays() -> None:
    topology = parsed(matrix([["", "SOC", "PSB"], ["SOC", "", "SOC"], ["PSB", "SOC", ""]]))
    assert topology.socket_crossing_pairs() == (("GPU0", "GPU1"), ("GPU1", "GPU2"))
    assert topology.pairs_of_kind("PIX") == (("GPU0", "GPU2"),)


def test_blanks_and_tabs_give_the_same_topology() -> None:
    assert parsed(NICS.expandtabs(12)).links == parsed(NICS).links
    spaced = "       GPU0 GPU1  CPU Affinity  NUMA Affinity\nGPU0   X   NV4   0-7    N/A\nGPU1  NV4   X    0-7    N/A\n"
    topology = parsed(spaced)
    assert topology.link("GPU0", "GPU1").nvlinks == 4  # type: ignore[union-attr]
    assert topology.gpus[0].numa_affinity is None
    assert topology.problems == ()


def test_a_device_of_any_name_between_the_gpus_and_the_affinity_is_a_nic() -> None:
    text = "\tGPU0\tqib0\tCPU Affinity\nGPU0\t X \tPHB\t0-3\nqib0\tPHB\t X \t\n"
    topology = parsed(text)
    assert [nic.name for nic in topology.nics] == ["qib0"]
    assert topology.link("GPU0", "qib0").kind == "PHB"  # type: ignore[union-attr]


def test_a_prompt_above_and_empty_lines_between_rows_do_not_matter() -> None:
    plain = uniform(4, "NV2")
    assert parsed("user@node:~$ nvidia-smi topo -m\n" + plain) == parsed(plain)
    assert parsed(plain.replace("\n", "\n\n")) == parsed(plain)
    assert parsed(plain.replace("\n", "\r\n")) == parsed(plain)


P2P = " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n"


def test_a_peer_to_peer_matrix_in_the_same_paste_is_passed_over() -> None:
    links = uniform(2, "PHB")
    assert parsed(links + LEGEND + P2P) == parsed(links)
    assert parsed(P2P + "\n" + links + LEGEND) == parsed(links)
    assert parsed(links + links.replace("PHB", "SYS")) == parsed(links)


def test_a_peer_to_peer_matrix_alone_is_not_taken_for_links() -> None:
    assert "topo -p2p" in reason(parse_topology(P2P))


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "empty"),
        ("Segmentation fault", "no link matrix"),
        (LEGEND, "no link matrix"),
        ("GPU0\t X \tNV4\nGPU1\tNV4\t X \n", "header"),
        ("\tGPU0\tGPU1\tCPU Affinity\n", "no links"),
    ],
)
def test_text_without_a_matrix_says_what_it_is(text: str, word: str) -> None:
    assert word in reason(parse_topology(text))


def test_rows_that_were_cut_off_are_filled_from_across_the_diagonal_and_named() -> None:
    whole = uniform(4, "NV18")
    cut = whole[: whole.rindex("NV18") + len("NV1")]  # the last cell reads NV1
    topology = parsed(cut)
    assert {link.label for link in topology.links.values()} == {"NV18"}
    assert topology.unknown_pairs() == ()
    assert any("row GPU3" in problem and "cut off" in problem for problem in topology.problems)


def test_pairs_of_missing_rows_are_unknown_and_not_guessed() -> None:
    rows = uniform(4, "NV18").splitlines()
    topology = parsed("\n".join(rows[:3]))
    assert topology.unknown_pairs() == (("GPU2", "GPU3"),)
    assert has_nvswitch(topology) is None
    assert [p for p in topology.problems if "missing" in p] == [
        "row GPU2 is missing: the text was cut off",
        "row GPU3 is missing: the text was cut off",
    ]


def test_contradicting_halves_give_the_slower_link_and_a_problem() -> None:
    topology = parsed(matrix([["", "NV12"], ["SYS", ""]]))
    assert topology.link("GPU0", "GPU1").kind == "SYS"  # type: ignore[union-attr]
    assert topology.link("GPU1", "GPU0").kind == "SYS"  # type: ignore[union-attr]
    assert "NV12" in topology.problems[0]


def test_a_cell_that_is_no_link_is_a_problem_and_no_link() -> None:
    topology = parsed(matrix([["", "WAT", "NV0"], ["WAT", "", "PIX"], ["NV0", "PIX", ""]]))
    assert topology.unknown_pairs() == (("GPU0", "GPU1"), ("GPU0", "GPU2"))
    assert any("'WAT'" in problem for problem in topology.problems)
    assert any("'NV0'" in problem for problem in topology.problems)


def test_affinity_columns_that_cannot_be_told_apart_are_left_unknown() -> None:
    text = "     GPU0  GPU1  CPU Affinity  NUMA Affinity\nGPU0  X  PIX  0\nGPU1  PIX  X  0-7  0\n"
    topology = parsed(text)
    assert topology.gpus[0].cpu_affinity is None
    assert topology.gpus[0].numa_affinity is None
    assert topology.gpus[1].numa_affinity == (0,)
    assert any("row GPU0" in problem and "affinity" in problem for problem in topology.problems)


@pytest.mark.parametrize(
    ("gpus", "cell", "links_per_gpu", "expected"),
    [
        (8, "NV18", None, True),  # HGX H100
        (8, "NV12", None, True),  # HGX A100
        (8, "NV8", None, True),  # HGX A800
        (16, "NV6", None, True),  # DGX-2
        (4, "NV18", None, True),  # four GPUs of an HGX H100, or a GB200 tray
        (4, "NV2", None, False),  # V100 mesh of four
        (4, "NV4", None, False),  # A100 mesh of four
        (2, "NV4", None, False),
        (2, "NV12", None, None),  # a bridge or two GPUs of an HGX A100
        (4, "NV6", None, None),  # an H100 mesh of four, or four GPUs of a DGX-2
        (4, "NV6", 18, False),
        (4, "NV6", 6, True),
        (2, "NV18", 18, None),
        (2, "NV6", 18, False),
        (8, "PIX", None, False),
        (1, "NV18", None, False),
    ],
)
def test_nvswitch_is_proven_by_more_links_than_a_gpu_has(
    gpus: int, cell: str, links_per_gpu: int | None, expected: bool | None
) -> None:
    assert has_nvswitch(parsed(uniform(gpus, cell)), links_per_gpu=links_per_gpu) is expected


def test_a_cube_mesh_is_one_island_without_a_switch() -> None:
    cube = [["", "NV1", "SYS", "NV2"], ["NV1", "", "NV2", "SYS"], ["SYS", "NV2", "", "NV1"], ["NV2", "SYS", "NV1", ""]]
    topology = parsed(matrix(cube))
    assert topology.nvlink_islands() == (("GPU0", "GPU1", "GPU2", "GPU3"),)
    assert len(topology.fast_pairs()) == 4
    assert has_nvswitch(topology) is False


def test_link_kinds_sort_from_fast_to_slow() -> None:
    cells = ["SYS", "PIX", "NV4", "NODE", "NV18", "PHB", "PXB"]
    rows = [["" if i == j else cells[max(i, j) - 1] for j in range(8)] for i in range(8)]
    links = [parsed(matrix(rows)).links["GPU0", f"GPU{j}"] for j in range(1, 8)]
    assert [link.label for link in sorted(links, key=lambda link: link.distance)] == [
        "NV18", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS",
    ]  # fmt: skip


SHARED_TRUTH = {
    # file: GPUs, NICs, label -> pairs, islands with more than one GPU, switch, NUMA nodes of the GPUs
    "2gpu_nv2_numa_na.txt": (2, 0, {"NV2": 1}, 1, False, {None}),
    "2gpu_phb_numa_na.txt": (2, 0, {"PHB": 1}, 0, False, {None}),
    "4gpu_pxb_pix_two_sockets.txt": (4, 0, {"PXB": 1, "PIX": 1, "SYS": 4}, 0, False, {0, 1}),
    "a100x8_nv12_pairs_two_numa.txt": (8, 0, {"NV12": 4, "NODE": 8, "SYS": 16}, 4, False, {0, 1}),
    "h100x8_nv18.txt": (8, 0, {"NV18": 28}, 1, True, {0, 1}),
    "rtx5090x2_phb_with_p2p_matrix.txt": (2, 0, {"PHB": 1}, 0, False, {0}),
    "v100x4_nv2_full_mesh.txt": (4, 1, {"NV2": 6}, 1, False, {0}),
}


@pytest.mark.shared_data
@needs_shared
def test_every_real_file_is_covered_here() -> None:
    assert {path.name for path in SHARED.glob("*.txt")} == set(SHARED_TRUTH)


@pytest.mark.shared_data
@needs_shared
@pytest.mark.parametrize("name", SHARED_TRUTH)
def test_real_machines_are_read_as_a_person_reads_them(name: str) -> None:
    gpus, nics, labels, islands, switch, nodes = SHARED_TRUTH[name]
    topology = parsed((SHARED / name).read_text(encoding="utf-8"))
    assert topology.problems == ()
    assert len(topology.gpus) == gpus
    assert len(topology.nics) == nics
    found = [topology.link(*pair) for pair in topology.gpu_pairs()]
    assert {label: sum(link is not None and link.label == label for link in found) for label in labels} == labels
    assert sum(labels.values()) == len(found)
    assert sum(len(island) > 1 for island in topology.nvlink_islands()) == islands
    assert has_nvswitch(topology) is switch
    assert {gpu.numa_affinity and gpu.numa_affinity[0] for gpu in topology.gpus} == nodes


@pytest.mark.shared_data
@needs_shared
def test_real_details_affinity_lists_and_the_nic_row() -> None:
    v100 = parsed((SHARED / "v100x4_nv2_full_mesh.txt").read_text(encoding="utf-8"))
    assert v100.gpus[0].cpu_affinity == (0, 2, 4, 6, 8, 10)
    assert v100.nics[0].name == "mlx5_0"
    assert v100.nics[0].cpu_affinity is None
    assert v100.link("GPU3", "mlx5_0").kind == "NODE"  # type: ignore[union-attr]
    h100 = parsed((SHARED / "h100x8_nv18.txt").read_text(encoding="utf-8"))
    assert h100.gpus[4].cpu_affinity == (*range(52, 104), *range(156, 208))
    a100 = parsed((SHARED / "a100x8_nv12_pairs_two_numa.txt").read_text(encoding="utf-8"))
    assert a100.fast_pairs() == (("GPU0", "GPU1"), ("GPU2", "GPU3"), ("GPU4", "GPU5"), ("GPU6", "GPU7"))
    assert ("GPU0", "GPU4") in a100.socket_crossing_pairs()


@pytest.mark.shared_data
@needs_shared
@pytest.mark.parametrize("name", SHARED_TRUTH)
def test_a_real_file_cut_anywhere_never_invents_a_link(name: str) -> None:
    text = (SHARED / name).read_text(encoding="utf-8")
    truth = parsed(text).links
    for end in range(0, len(text), 3):
        cut = parse_topology(text[:end])
        if isinstance(cut, Topology):
            assert all(truth.get(pair) == link for pair, link in cut.links.items()), end
            assert all(link.kind in LINK_KINDS for link in cut.links.values())

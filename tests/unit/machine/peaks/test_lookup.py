from __future__ import annotations

import csv
from pathlib import Path

import pytest

from stepscope.core.errors import Unavailable
from stepscope.machine.peaks import ACCELERATORS, Accelerator, find
from stepscope.machine.peaks.lookup import spelled_like
from stepscope.machine.peaks.rates import LINKS, pcie_bytes_per_s

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "published" / "accelerators.csv"

AS_PRINTED = {
    "NVIDIA H100 80GB HBM3": ("h100-sxm", 989.4),
    "NVIDIA H100 PCIe": ("h100-pcie", 756),
    "NVIDIA H100 NVL": ("h100-nvl", 835),
    "NVIDIA H200": ("h200-sxm", 989.4),
    "NVIDIA H200 NVL": ("h200-nvl", 835.5),
    "NVIDIA H800": ("h800-sxm", 989.4),
    "NVIDIA H20": ("h20", 148),
    "NVIDIA GH200 480GB": ("gh200-96gb", 989.4),
    "NVIDIA GH200 144G HBM3e": ("gh200-144gb", 989.4),
    "NVIDIA B200": ("b200", 2250),
    "NVIDIA GB200": ("gb200", 2500),
    "NVIDIA B300 SXM6 AC": ("b300", 2250),
    "NVIDIA A100-SXM4-40GB": ("a100-sxm4-40gb", 312),
    "A100-SXM4-40GB": ("a100-sxm4-40gb", 312),
    "NVIDIA A100-SXM4-80GB": ("a100-sxm4-80gb", 312),
    "NVIDIA A100-PCIE-40GB": ("a100-pcie-40gb", 312),
    "NVIDIA A100 80GB PCIe": ("a100-pcie-80gb", 312),
    "NVIDIA A10": ("a10", 125),
    "NVIDIA A10G": ("a10g", 70),
    "NVIDIA A30": ("a30", 165),
    "NVIDIA A40": ("a40", 149.7),
    "NVIDIA L4": ("l4", 121),
    "NVIDIA L40": ("l40", 181),
    "NVIDIA L40S": ("l40s", 362),
    "NVIDIA GeForce RTX 3090": ("rtx-3090", 71),
    "NVIDIA GeForce RTX 3090 Ti": ("rtx-3090-ti", 80),
    "NVIDIA GeForce RTX 4090": ("rtx-4090", 165.2),
    "NVIDIA GeForce RTX 5090": ("rtx-5090", 209.5),
    "NVIDIA RTX A6000": ("rtx-a6000", 154.8),
    "NVIDIA RTX 6000 Ada Generation": ("rtx-6000-ada", 364.2),
    "AMD Instinct MI300X": ("mi300x", 1307.4),
    "AMD Instinct MI250X": ("mi250x", 191.5),
}
"""Device names as torch and NVML print them, with the dense BF16 TFLOP/s."""


@pytest.mark.parametrize("name", AS_PRINTED)
def test_names_as_printed_give_their_own_dense_peak(name: str) -> None:
    key, bf16 = AS_PRINTED[name]
    found = find(name)
    assert isinstance(found, Accelerator), found
    assert found.key == key
    assert found.peak("bf16") == pytest.approx(bf16 * 1e12)


@pytest.mark.parametrize(
    ("name", "key", "fp16"),
    [
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16gb", 125),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb", 125),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16gb", 112),
        ("Tesla V100S-PCIE-32GB", "v100s-pcie-32gb", 130),
        ("Tesla T4", "t4", 65),
        ("Quadro RTX 8000", "quadro-rtx-8000", 130.5),
    ],
)
def test_gpus_without_bf16_say_so(name: str, key: str, fp16: float) -> None:
    found = find(name)
    assert isinstance(found, Accelerator)
    assert found.key == key
    assert found.peak("fp16") == pytest.approx(fp16 * 1e12)
    for dtype in ("bf16", "tf32", "fp8"):
        missing = found.peak(dtype)
        assert isinstance(missing, Unavailable)
        assert dtype in missing.reason


NEIGHBOURS = [
    "NVIDIA GeForce RTX 4090 Laptop GPU",
    "NVIDIA GeForce RTX 4090 D",
    "NVIDIA GeForce RTX 3080",
    "NVIDIA GeForce RTX 4080 SUPER",
    "NVIDIA H100 96GB HBM3",
    "NVIDIA H100 64GB HBM2",
    "NVIDIA A100-SXM-64GB",
    "NVIDIA A10M",
    "NVIDIA A100X",
    "NVIDIA L20",
    "Tesla V100-SXM3-32GB-H",
    "Tesla V100-FHHL-16GB",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    "NVIDIA RTX 4000 Ada Generation",
    "AMD Instinct MI250X / MI250",
    "AMD Radeon RX 7900 XTX",
    "NVIDIA GB10",
    "NVIDIA H2000",
    "llvmpipe",
]


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_name_close_to_a_known_one_never_gets_its_peak(name: str) -> None:
    found = find(name)
    assert isinstance(found, Unavailable), found.key
    assert repr(name) in found.reason


def test_surplus_blanks_and_letter_case_are_no_other_gpu() -> None:
    assert find("  nvidia   l4 ") == find("NVIDIA L4")
    assert find("NVIDIA(R) H100 PCIe") == find("h100-pcie")


@pytest.mark.parametrize(
    ("name", "guess"),
    [
        ("h100sxm", "h100-sxm"),
        ("h100-smx", "h100-sxm"),
        ("GeForce RTX4090", "rtx-4090"),
        ("l40 s", "l40s"),
        ("h100 pci", "h100-pcie"),
    ],
)
def test_a_misspelt_name_comes_with_a_did_you_mean(name: str, guess: str) -> None:
    found = find(name)
    assert isinstance(found, Unavailable)
    assert f"did you mean {guess!r}" in found.reason


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "'rtx-4090'"),
        ("RTX 4080 Laptop", "'rtx-4080'"),
        ("RTX 4081", "'rtx-4080'"),
        ("A1000", "'a10'"),
        ("H10", "'h100-sxm'"),
        ("NVIDIA A100-SXM-64GB", "'a100-sxm4-80gb'"),
        ("mi300", "'mi300x'"),
        ("l40z", "'l40'"),
        ("NVIDIA A10M", "'a10'"),
        ("RTX 6000", "'rtx-6000-ada'"),
        ("RTX 3080", "'rtx-3090'"),
    ],
)
def test_another_number_or_another_word_is_another_part_and_is_called_so(name: str, near: str) -> None:
    found = find(name)
    assert isinstance(found, Unavailable)
    assert "did you mean" not in found.reason
    assert "another part" in found.reason
    assert near in found.reason
    assert 1 <= found.reason.count("'") // 2 - 1 <= 4


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("H100", ("h100-sxm", "h100-pcie", "h100-nvl")),
        ("NVIDIA A100", ("a100-sxm4-40gb", "a100-sxm4-80gb", "a100-pcie-40gb", "a100-pcie-80gb")),
        ("Tesla V100", ("v100-sxm2-16gb", "v100-pcie-16gb")),
    ],
)
def test_a_name_that_leaves_several_parts_open_lists_them(name: str, members: tuple[str, ...]) -> None:
    found = find(name)
    assert isinstance(found, Unavailable)
    assert all(repr(member) in found.reason for member in members)
    assert "say which" in found.reason


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG slice"),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "MIG slice"),
        ("GRID A100-10C", "virtual GPU"),
        ("NVIDIA A10-24Q", "virtual GPU"),
        ("", "no name"),
    ],
)
def test_a_part_of_a_gpu_has_no_peak_of_its_own(name: str, said: str) -> None:
    found = find(name)
    assert isinstance(found, Unavailable)
    assert said in found.reason


def test_every_key_and_table_name_finds_its_entry_and_no_two_share_one() -> None:
    assert len({entry.key for entry in ACCELERATORS}) == len(ACCELERATORS)
    for entry in ACCELERATORS:
        assert find(entry.key) is entry
        assert find(entry.name) is entry


@pytest.mark.parametrize("entry", ACCELERATORS, ids=lambda entry: entry.key)
def test_every_entry_has_a_source_a_date_and_plausible_dense_rates(entry: Accelerator) -> None:
    assert entry.source
    assert entry.date[:2] == "20"
    assert entry.confused_with
    assert entry.match
    rates = entry.peak_flops_per_s
    assert set(rates) <= {"fp32", "tf32", "fp16", "bf16", "fp8"}
    assert {"fp32", "fp16"} <= set(rates)
    assert all(1e12 < rate < 1e16 for rate in rates.values())
    assert rates["fp16"] >= rates["fp32"]
    if "fp8" in rates:  # every part so far doubles its 16-bit rate
        assert rates["fp8"] == pytest.approx(2 * rates["bf16"], rel=0.015)
    if "tf32" in rates:
        assert rates["tf32"] in (
            pytest.approx(rates["bf16"] / 2, rel=0.015),
            pytest.approx(rates["fp32"], rel=0.01),
        )
    assert 1e11 < entry.memory_bytes_per_s < 1e13
    assert 8e9 <= entry.memory_bytes <= 3e11


def test_an_unknown_dtype_is_unavailable() -> None:
    found = ACCELERATORS[0].peak("int3")
    assert isinstance(found, Unavailable)


def test_link_rates_are_per_direction() -> None:
    h100, mi300x = find("h100-sxm"), find("mi300x")
    assert isinstance(h100, Accelerator)
    assert isinstance(mi300x, Accelerator)
    assert h100.link is not None
    assert mi300x.link is not None
    assert h100.link.bytes_per_s == h100.link.peer_bytes_per_s == 450e9
    assert mi300x.link.bytes_per_s == 448e9
    assert mi300x.link.peer_bytes_per_s == 64e9


@pytest.mark.parametrize(
    ("generation", "lanes", "expected"),
    [(3, 16, 15.75e9), (4, 16, 31.5e9), (5, 16, 63.0e9), (4, 8, 15.75e9), (6, 16, 121e9)],
)
def test_pcie_rates_follow_from_transfer_rate_and_encoding(generation: int, lanes: int, expected: float) -> None:
    assert pcie_bytes_per_s(generation, lanes) == pytest.approx(expected, rel=0.002)


def test_an_unknown_pcie_generation_is_unavailable() -> None:
    assert isinstance(pcie_bytes_per_s(9, 16), Unavailable)
    assert isinstance(pcie_bytes_per_s(4, 0), Unavailable)


def test_network_links_are_bits_over_eight_and_keys_are_unique() -> None:
    assert len({link.key for link in LINKS}) == len(LINKS)
    for key, expected in (("ethernet-100g", 12.5e9), ("infiniband-ndr", 50e9), ("nvlink4-x18", 450e9)):
        (link,) = (link for link in LINKS if link.key == key)
        assert link.bytes_per_s == pytest.approx(expected)


# Published table beside the checkout: same parts, other transcribers.

SAME = {
    "V100_SXM_16GB": "v100-sxm2-16gb", "V100_SXM_32GB": "v100-sxm2-32gb", "V100_PCIE": "v100-pcie-16gb",
    "A10": "a10", "A10G": "a10g", "L4": "l4", "L40S": "l40s", "RTX_3090": "rtx-3090", "RTX_4090": "rtx-4090",
    "RTX_5090": "rtx-5090", "RTX_A6000": "rtx-a6000", "RTX_6000_ADA": "rtx-6000-ada",
    "QUADRO_RTX_8000": "quadro-rtx-8000", "A100_SXM_40GB": "a100-sxm4-40gb", "A100_SXM_80GB": "a100-sxm4-80gb",
    "A800_SXM_80GB": "a800-sxm4-80gb", "A100_PCIE_40GB": "a100-pcie-40gb", "A100_PCIE_80GB": "a100-pcie-80gb",
    "H100_SXM": "h100-sxm", "H100_PCIE": "h100-pcie", "H100_NVL": "h100-nvl", "H200_SXM": "h200-sxm",
    "GH200": "gh200-96gb", "B200": "b200", "B300": "b300", "GB200": "gb200", "GB300": "gb300", "MI250X": "mi250x",
    "MI300X": "mi300x", "MI325X": "mi325x", "MI355X": "mi355x",
}  # fmt: skip
TWO_DEVICES = {"MI250X"}
"""The published row counts the package, ours one of its two devices."""
BRIDGE_NOT_COUNTED = {
    "A100_PCIE_40GB",
    "A100_PCIE_80GB",
    "H100_PCIE",
    "RTX_3090",
    "RTX_A6000",
    "QUADRO_RTX_8000",
}
"""The published row gives PCIe as the link; ours names the optional bridge."""


def published() -> dict[str, dict[str, str]]:
    with SHARED.open(encoding="utf-8", newline="") as file:
        return {row["accelerator"]: row for row in csv.DictReader(file)}


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_file(), reason="the published table does not lie beside the checkout")
@pytest.mark.parametrize("theirs", SAME)
def test_rates_agree_with_the_published_table(theirs: str) -> None:
    row, entry = published()[theirs], find(SAME[theirs])
    assert isinstance(entry, Accelerator)
    share = 2 if theirs in TWO_DEVICES else 1
    columns = {
        "fp32": "fp32_tflops", "tf32": "tf32_tflops_dense", "fp16": "fp16_tflops_dense",
        "bf16": "bf16_tflops_dense", "fp8": "fp8_tflops_dense",
    }  # fmt: skip
    for dtype, column in columns.items():
        ours = entry.peak_flops_per_s.get(dtype)
        if row[column]:
            assert ours == pytest.approx(float(row[column]) * 1e12 / share, rel=0.01), dtype
        else:
            assert ours is None, dtype
    assert entry.memory_bytes == pytest.approx(float(row["mem_gb"]) * 1e9 / share)
    assert entry.memory_bytes_per_s == pytest.approx(float(row["hbm_bw_gbs"]) * 1e9 / share, rel=0.01)


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_file(), reason="the published table does not lie beside the checkout")
@pytest.mark.parametrize("theirs", [key for key in SAME if key not in BRIDGE_NOT_COUNTED | TWO_DEVICES])
def test_links_agree_with_the_published_table(theirs: str) -> None:
    row, entry = published()[theirs], find(SAME[theirs])
    assert isinstance(entry, Accelerator)
    if row["intra_link"].startswith("PCIe"):
        assert entry.link is None
        assert entry.pcie is not None
        rate = pcie_bytes_per_s(*entry.pcie)
        assert rate == pytest.approx(float(row["link_bw_unidir_gbs"]) * 1e9, rel=0.02)
    else:
        assert entry.link is not None
        assert entry.link.bytes_per_s == pytest.approx(float(row["link_bw_unidir_gbs"]) * 1e9, rel=0.01)


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_file(), reason="the published table does not lie beside the checkout")
def test_every_published_gpu_is_in_the_table() -> None:
    gpus = {key for key, row in published().items() if row["vendor"] in ("NVIDIA", "AMD")}
    assert gpus == set(SAME)


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_file(), reason="the published table does not lie beside the checkout")
@pytest.mark.parametrize("theirs", SAME)
def test_no_sparse_rate_slipped_in(theirs: str) -> None:
    row, entry = published()[theirs], find(SAME[theirs])
    assert isinstance(entry, Accelerator)
    if row["bf16_tflops_sparse_spec"]:
        assert entry.peak_flops_per_s["bf16"] < 0.6 * float(row["bf16_tflops_sparse_spec"]) * 1e12


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("h1oo", "h100"), ("A1OO", "a100"), ("rtx-409", "rtx-4090"), ("zzz", None)],
)
def test_what_somebody_typed_is_guessed(typed: str, meant: str | None) -> None:
    assert spelled_like(typed) == meant

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from tests.machines import reason

from stepscope.machine.peaks import ACCELERATORS, Accelerator, find
from stepscope.machine.peaks.lookup import spelled_like
from stepscope.machine.peaks.rates import LINKS, pcie_bytes_per_s

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "published" / "accelerators.csv"

# fmt: off
AS_PRINTED = {
    "NVIDIA H100 80GB HBM3": ("h100-sxm", 989.4), "NVIDIA H100 PCIe": ("h100-pcie", 756),
    "NVIDIA H100 NVL": ("h100-nvl", 835), "NVIDIA H200": ("h200-sxm", 989.4), "NVIDIA H200 NVL": ("h200-nvl", 835.5),
    "NVIDIA H800": ("h800-sxm", 989.4), "NVIDIA H20": ("h20", 148), "NVIDIA GH200 480GB": ("gh200-96gb", 989.4),
    "NVIDIA GH200 144G HBM3e": ("gh200-144gb", 989.4), "NVIDIA B200": ("b200", 2250), "NVIDIA GB200": ("gb200", 2500),
    "NVIDIA B300 SXM6 AC": ("b300", 2250), "NVIDIA A100-SXM4-40GB": ("a100-sxm4-40gb", 312),
    "A100-SXM4-40GB": ("a100-sxm4-40gb", 312), "NVIDIA A100-SXM4-80GB": ("a100-sxm4-80gb", 312),
    "NVIDIA A100-PCIE-40GB": ("a100-pcie-40gb", 312), "NVIDIA A100 80GB PCIe": ("a100-pcie-80gb", 312),
    "NVIDIA A10": ("a10", 125), "NVIDIA A10G": ("a10g", 70), "NVIDIA A30": ("a30", 165), "NVIDIA A40": ("a40", 149.7),
    "NVIDIA L4": ("l4", 121), "NVIDIA L40": ("l40", 181), "NVIDIA L40S": ("l40s", 362),
    "NVIDIA GeForce RTX 3090": ("rtx-3090", 71), "NVIDIA GeForce RTX 3090 Ti": ("rtx-3090-ti", 80),
    "NVIDIA GeForce RTX 4090": ("rtx-4090", 165.2), "NVIDIA GeForce RTX 5090": ("rtx-5090", 209.5),
    "NVIDIA RTX A6000": ("rtx-a6000", 154.8), "NVIDIA RTX 6000 Ada Generation": ("rtx-6000-ada", 364.2),
    "AMD Instinct MI300X": ("mi300x", 1307.4), "AMD Instinct MI250X": ("mi250x", 191.5),
}
"""Device names as torch and NVML print them, with the dense BF16 TFLOP/s."""

WITHOUT_BF16 = {
    "Tesla V100-SXM2-16GB": ("v100-sxm2-16gb", 125), "Tesla V100-SXM2-32GB": ("v100-sxm2-32gb", 125),
    "Tesla V100-PCIE-16GB": ("v100-pcie-16gb", 112), "Tesla V100S-PCIE-32GB": ("v100s-pcie-32gb", 130),
    "Tesla T4": ("t4", 65), "Quadro RTX 8000": ("quadro-rtx-8000", 130.5),
}
"""The same with the dense FP16 TFLOP/s, of GPUs that know no newer type."""
# fmt: on


def known(name: str) -> Accelerator:
    found = find(name)
    assert isinstance(found, Accelerator), found
    return found


@pytest.mark.parametrize("name", AS_PRINTED | WITHOUT_BF16)
def test_names_as_printed_give_their_own_dense_peak(name: str) -> None:
    key, rate = (AS_PRINTED | WITHOUT_BF16)[name]
    found = known(name)
    assert found.key == key
    assert found.peak("bf16" if name in AS_PRINTED else "fp16") == pytest.approx(rate * 1e12)
    for dtype in ("bf16", "tf32", "fp8") if name in WITHOUT_BF16 else ("int3",):
        assert dtype in reason(found.peak(dtype))


NEIGHBOURS = [
    "NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA GeForce RTX 3080",
    "NVIDIA GeForce RTX 4080 SUPER", "NVIDIA H100 96GB HBM3", "NVIDIA H100 64GB HBM2", "NVIDIA A100-SXM-64GB",
    "NVIDIA A10M", "NVIDIA A100X", "NVIDIA L20", "Tesla V100-SXM3-32GB-H", "Tesla V100-FHHL-16GB",
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA RTX 4000 Ada Generation",
    "AMD Instinct MI250X / MI250", "AMD Radeon RX 7900 XTX", "NVIDIA GB10", "NVIDIA H2000", "llvmpipe",
]  # fmt: skip


@pytest.mark.parametrize("name", NEIGHBOURS)
def test_a_name_close_to_a_known_one_never_gets_its_peak(name: str) -> None:
    assert repr(name) in reason(find(name))


def test_surplus_blanks_and_letter_case_are_no_other_gpu() -> None:
    assert find("  nvidia   l4 ") == find("NVIDIA L4")
    assert find("NVIDIA(R) H100 PCIe") == find("h100-pcie")


REFUSED = [
    ("h100sxm", "did you mean 'h100-sxm'"), ("h100-smx", "did you mean 'h100-sxm'"),
    ("GeForce RTX4090", "did you mean 'rtx-4090'"), ("l40 s", "did you mean 'l40s'"),
    ("h100 pci", "did you mean 'h100-pcie'"),
    ("H100", "'h100-sxm'", "'h100-pcie'", "'h100-nvl'", "say which"),
    ("NVIDIA A100", "'a100-sxm4-40gb'", "'a100-sxm4-80gb'", "'a100-pcie-40gb'", "'a100-pcie-80gb'", "say which"),
    ("Tesla V100", "'v100-sxm2-16gb'", "'v100-pcie-16gb'", "say which"),
    ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG slice"), ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", "MIG slice"),
    ("GRID A100-10C", "virtual GPU"), ("NVIDIA A10-24Q", "virtual GPU"), ("", "no name"),
]  # fmt: skip
"""A misspelt name, one that leaves several parts open, a part of a GPU: with what is said of it."""


@pytest.mark.parametrize(("name", "said"), [(name, said) for name, *said in REFUSED])
def test_a_name_that_is_no_gpus_own_is_refused_with_what_is_meant(name: str, said: list[str]) -> None:
    refused = reason(find(name))
    assert [word for word in said if word not in refused] == []


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090"), ("RTX 4080 Laptop", "rtx-4080"), ("RTX 4081", "rtx-4080"),
        ("A1000", "a10"), ("H10", "h100-sxm"), ("NVIDIA A100-SXM-64GB", "a100-sxm4-80gb"), ("mi300", "mi300x"),
        ("l40z", "l40"), ("NVIDIA A10M", "a10"), ("RTX 6000", "rtx-6000-ada"), ("RTX 3080", "rtx-3090"),
    ],
)  # fmt: skip
def test_another_number_or_another_word_is_another_part_and_is_called_so(name: str, near: str) -> None:
    refused = reason(find(name))
    assert "did you mean" not in refused
    assert "another part" in refused
    assert repr(near) in refused
    assert 1 <= refused.count("'") // 2 - 1 <= 4


def test_every_key_and_table_name_finds_its_entry_and_no_two_share_one() -> None:
    assert len({entry.key for entry in ACCELERATORS}) == len(ACCELERATORS)
    for entry in ACCELERATORS:
        assert find(entry.key) is entry
        assert find(entry.name) is entry


@pytest.mark.parametrize("entry", ACCELERATORS, ids=lambda entry: entry.key)
def test_every_entry_has_a_source_a_date_and_plausible_dense_rates(entry: Accelerator) -> None:
    assert entry.source and entry.confused_with and entry.match  # noqa: PT018
    assert entry.date[:2] == "20"
    rates = entry.peak_flops_per_s
    assert set(rates) <= {"fp32", "tf32", "fp16", "bf16", "fp8", "fp4"}
    assert {"fp32", "fp16"} <= set(rates)
    assert all(1e12 < rate < 2e16 for rate in rates.values())
    assert rates["fp16"] >= rates["fp32"]
    if "fp8" in rates:  # every part so far doubles its 16-bit rate
        assert rates["fp8"] == pytest.approx(2 * rates["bf16"], rel=0.015)
    if "fp4" in rates:  # twice FP8, three times on B300; GeForce parts halve all but FP4 for their FP32 accumulation
        assert rates["fp4"] / rates["fp8"] in (
            pytest.approx(2, rel=0.015),
            pytest.approx(3),
            pytest.approx(4, rel=0.01),
        )
    if "tf32" in rates:
        assert rates["tf32"] in (pytest.approx(rates["bf16"] / 2, rel=0.015), pytest.approx(rates["fp32"], rel=0.01))
    assert 1e11 < entry.memory_bytes_per_s < 1e13
    assert 8e9 <= entry.memory_bytes <= 3e11


def test_link_rates_are_per_direction() -> None:
    links = [known(name).link for name in ("h100-sxm", "mi300x")]
    assert [link and (link.bytes_per_s, link.peer_bytes_per_s) for link in links] == [(450e9, 450e9), (448e9, 64e9)]


@pytest.mark.parametrize(
    ("generation", "lanes", "expected"),
    [(3, 16, 15.75e9), (4, 16, 31.5e9), (5, 16, 63.0e9), (4, 8, 15.75e9), (6, 16, 121e9), (9, 16, None), (4, 0, None)],
)
def test_pcie_rates_follow_from_transfer_rate_and_encoding(generation: int, lanes: int, expected: float | None) -> None:
    rate = pcie_bytes_per_s(generation, lanes)
    assert reason(rate) if expected is None else rate == pytest.approx(expected, rel=0.002)


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
BRIDGE_NOT_COUNTED = {"A100_PCIE_40GB", "A100_PCIE_80GB", "H100_PCIE", "RTX_3090", "RTX_A6000", "QUADRO_RTX_8000"}
"""The published row gives PCIe as the link; ours names the optional bridge."""
COLUMNS = {"fp32": "fp32_tflops"} | {dtype: f"{dtype}_tflops_dense" for dtype in ("tf32", "fp16", "bf16", "fp8")}


def published() -> dict[str, dict[str, str]]:
    with SHARED.open(encoding="utf-8", newline="") as file:
        return {row["accelerator"]: row for row in csv.DictReader(file)}


@pytest.mark.shared_data
@pytest.mark.skipif(not SHARED.is_file(), reason="the published table does not lie beside the checkout")
def test_the_published_table_has_the_same_gpus_with_the_same_rates_and_links() -> None:
    assert {key for key, row in published().items() if row["vendor"] in ("NVIDIA", "AMD")} == set(SAME)
    for theirs, ours in SAME.items():
        row, entry = published()[theirs], known(ours)
        share = 2 if theirs in TWO_DEVICES else 1
        rates = {dtype: float(row[column]) * 1e12 / share for dtype, column in COLUMNS.items() if row[column]}
        ours_there = {dtype: entry.peak_flops_per_s[dtype] for dtype in COLUMNS if dtype in entry.peak_flops_per_s}
        assert ours_there == pytest.approx(rates, rel=0.01), theirs
        assert entry.memory_bytes == pytest.approx(float(row["mem_gb"]) * 1e9 / share), theirs
        assert entry.memory_bytes_per_s == pytest.approx(float(row["hbm_bw_gbs"]) * 1e9 / share, rel=0.01), theirs
        if row["bf16_tflops_sparse_spec"]:
            assert entry.peak_flops_per_s["bf16"] < 0.6 * float(row["bf16_tflops_sparse_spec"]) * 1e12, theirs
        if theirs not in BRIDGE_NOT_COUNTED | TWO_DEVICES:
            over_pcie = row["intra_link"].startswith("PCIe")
            assert (entry.link is None) == over_pcie, theirs
            rate = pcie_bytes_per_s(*entry.pcie) if over_pcie else entry.link.bytes_per_s
            assert rate == pytest.approx(float(row["link_bw_unidir_gbs"]) * 1e9, rel=0.02 if over_pcie else 0.01), (
                theirs
            )


@pytest.mark.parametrize(
    ("typed", "meant"), [("h1oo", "h100"), ("A1OO", "a100"), ("rtx-409", "rtx-4090"), ("zzz", None)]
)
def test_what_somebody_typed_is_guessed(typed: str, meant: str | None) -> None:
    assert spelled_like(typed) == meant

"""Expected and measured bandwidth of links: whose peak is known, from what, and what is compared with it."""

from __future__ import annotations

from typing import Any

import pytest
from tests.bench_evidence import environment
from tests.comm_rows import MIB, collective, pairs, sweep
from tests.described import drawn

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_percent
from stepscope.machine.topology import Topology, parse_topology
from stepscope.records.environment import EnvironmentRecord, GpuFact, TorchFact
from stepscope.report.views import comm, links
from stepscope.results.comm_facts import LOOPBACK, NIC, LinkRate, link_rates

H100 = "NVIDIA H100 80GB HBM3"


def machine(*names: str, pcie: int | None = 5) -> EnvironmentRecord:
    gpus = tuple(
        GpuFact(
            index=n, name=name, uuid=None, memory_bytes=None, compute_capability=None, driver_version=None,
            pcie_generation_max=pcie, pcie_width=16,
        )
        for n, name in enumerate(names)
    )  # fmt: skip
    torch = TorchFact(**dict.fromkeys(TorchFact.__dataclass_fields__) | {"device_names": names})  # type: ignore[attr-defined,arg-type]
    return environment(gpus=gpus, torch=torch)


def matrix(link: str) -> Topology:
    text = f"\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{link}\t0-3\nGPU1\t{link}\t X \t0-3\n"
    found = parse_topology(text)
    assert not isinstance(found, Unavailable)
    return found


def two(**changes: Any) -> list[LinkRate]:
    """Pairs of two ranks at 2 MiB in 40 us: 52 GB/s."""
    shape = {"rank_hosts": ("a", "a"), "device": "cuda", "backend": "nccl"} | changes
    env, topology = shape.pop("environment", None), shape.pop("topology", None)
    return list(link_rates(pairs(2, us=40.0, **shape), env, topology))


@pytest.mark.parametrize(
    ("gpu", "link", "expected"),
    [
        (H100, "NV18", 450e9),
        (H100, "NV6", 150e9),  # 6 of its 18 links of 25 GB/s go to this peer
        (H100, "PIX", 63.015e9),  # PCIe 5.0 x16: 32 GT/s x 128/130 x 16 / 8
    ],
)
def test_between_gpus_the_links_of_the_matrix_are_counted(gpu: str, link: str, expected: float) -> None:
    first, second = two(environment=machine(gpu, gpu), topology=matrix(link))
    assert (first.ranks, second.ranks) == ((0, 1), (1, 0))
    assert first.path == link
    assert first.expected_bytes_per_s == pytest.approx(expected, rel=1e-3)
    assert first.share == pytest.approx(2 * MIB / 40e-6 / expected, rel=1e-3)


def test_without_a_matrix_the_models_links_are_expected_and_emulated_ones_between_hosts() -> None:
    assert two(environment=machine(H100, H100))[0].expected_bytes_per_s == 450e9
    rows = pairs(4, rank_hosts=("a", "a", "b", "b"), hosts=2, network="1gbit:2", link_peak_bytes_per_s=125e6)
    expected = {rate.ranks: rate.expected_bytes_per_s for rate in link_rates(rows, None, None)}
    assert expected[0, 1] is None
    assert expected[0, 2] == expected[3, 1] == 125e6


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"device": "cpu", "backend": "gloo"}, LOOPBACK),
        ({"rank_hosts": ("a", "b")}, NIC),
        ({}, "the GPUs are unknown, or of several models"),
        ({"environment": machine(H100, "NVIDIA A100-SXM4-80GB")}, "the GPUs are unknown, or of several models"),
        (
            {"environment": machine(H100, H100, pcie=None), "topology": matrix("SYS")},
            "the PCIe generation or width of a GPU is unknown",
        ),
    ],
)
def test_where_no_peak_is_known_none_is_made_up_and_the_reason_is_given(changes: dict[str, Any], why: str) -> None:
    rate = two(**changes)[0]
    assert (rate.expected_bytes_per_s, rate.share) == (None, None)
    assert rate.unknown == why
    assert rate.measured_bytes_per_s > 0


def test_a_collective_has_a_row_where_its_peak_is_known_or_pairs_were_measured() -> None:
    alone = sweep(device="cpu")
    assert link_rates(alone, None, None) == ()
    (known,) = link_rates(sweep(link_peak_bytes_per_s=5e9), None, None)
    best = max(row.busbw_bytes_per_s or 0 for row in sweep())
    assert (known.expected_bytes_per_s, known.measured_bytes_per_s) == (5e9, best)
    assert [rate.ranks for rate in link_rates([*alone, *pairs(2)], None, None)] == [(0, 1), (1, 0), None]


EMULATED = {"network": "2gbit:2", "hosts": 2, "link_peak_bytes_per_s": 250e6}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (EMULATED, "burst"),
        ({"backend": "nccl", "device": "cuda", "link_peak_bytes_per_s": 250e6}, "NVLS"),
        ({"link_peak_bytes_per_s": 250e6}, "peak is wrong"),
    ],
)
def test_above_the_peak_there_is_no_share_but_the_reason(changes: dict[str, Any], why: str) -> None:
    fast = collective(4 * MIB, 10_000.0, **changes)
    (rate,) = link_rates([fast], None, None)
    assert rate.share is None
    assert why in (rate.above or "")
    for table in (links.links_table([fast], None, None), comm.overview_table([fast]), comm.comm_table([fast])):
        (shown,) = table.rows
        assert not [value.text for value in shown.values if value.text.rstrip("%").isdecimal() and "%" in value.text]
        assert any(why in note for note in table.footnotes)


def test_a_burst_of_a_small_message_is_not_what_a_sweep_is_judged_by() -> None:
    """256 KiB pass at 131% of the emulated link, 4 MiB at 98%: one size, and one share, in tables and caption."""
    rows = [collective(256 * 1024, 800.0, **EMULATED), collective(4 * MIB, 17_100.0, **EMULATED)]
    (rate,) = link_rates(rows, None, None)
    table = comm.overview_table(rows)
    shown = dict(zip((c.key for c in table.columns), table.rows[0].values, strict=True))
    assert (shown["at_size"].raw, shown["link_fraction"].raw) == (4 * MIB, rate.share)
    (chart,) = drawn("comm_busbw", rows=rows)
    assert "at 4 MiB" in chart.caption
    assert f"{format_percent(rate.share or 0)} of the link" in chart.caption
    (burst,) = drawn("comm_busbw", rows=rows[:1])
    assert "of the link." not in burst.caption
    assert "burst" in burst.caption

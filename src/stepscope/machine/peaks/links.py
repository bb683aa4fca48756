"""Peak rates of links, bytes/s per direction: PCIe, NVLink, Ethernet, InfiniBand.

Only these are compared with a measured busbw (METRICS: efficiency against the link, per direction). Vendors print
NVLink and PCIe both ways, and networks in bit/s: 900 GB/s NVLink is 450 here, 400 Gbit/s is 50 GB/s.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import Unavailable

_PCIE = "PCI-SIG base specifications 1.0 to 6.0: transfer rate x encoding"
_NVLINK = "NVIDIA Pascal, Volta, Ampere, Hopper and Blackwell architecture whitepapers"
_ETHERNET = "IEEE 802.3: bit rate / 8, frame headers not taken off"
_INFINIBAND = "InfiniBand Trade Association roadmap: 4 lanes, data rate after encoding / 8"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPeak:
    """bytes_per_s: one direction."""

    key: str
    name: str
    bytes_per_s: float
    source: str
    date: str


def pcie_bytes_per_s(generation: int, lanes: int) -> float | Unavailable:
    """Peak of a PCIe link in one direction after line encoding, bytes/s; packet headers take 5 to 20% more.

    Generations 1 and 2 carry 8 of 10 bits, 3 to 5 128 of 130; 6 sends flits with 242 of 256 bytes for packets.
    """
    rates = {
        1: (2.5, 8 / 10),
        2: (5.0, 8 / 10),
        3: (8.0, 128 / 130),
        4: (16.0, 128 / 130),
        5: (32.0, 128 / 130),
        6: (64.0, 242 / 256),
    }
    if generation not in rates or lanes < 1:
        return Unavailable(f"no PCIe generation {generation} with {lanes} lanes")
    giga_transfers, encoding = rates[generation]
    return giga_transfers * 1e9 * encoding / 8 * lanes


def _pcie(generation: int, date: str) -> LinkPeak:
    rate = pcie_bytes_per_s(generation, 16)
    assert not isinstance(rate, Unavailable)
    return LinkPeak(
        key=f"pcie{generation}-x16",
        name=f"PCIe {generation}.0 x16",
        bytes_per_s=rate,
        source=_PCIE,
        date=date,
    )


def _nvlink(generation: int, links: int, each_gb: float, gpu: str, date: str) -> LinkPeak:
    return LinkPeak(
        key=f"nvlink{generation}-x{links}",
        name=f"NVLink {generation}, {links} links ({gpu})",
        bytes_per_s=links * each_gb * 1e9,
        source=_NVLINK,
        date=date,
    )


def _ethernet(gbit: int) -> LinkPeak:
    return LinkPeak(
        key=f"ethernet-{gbit}g",
        name=f"{gbit} Gbit Ethernet",
        bytes_per_s=gbit * 1e9 / 8,
        source=_ETHERNET,
        date="2024",
    )


def _infiniband(name: str, data_gbit: float) -> LinkPeak:
    return LinkPeak(
        key=f"infiniband-{name.lower()}",
        name=f"InfiniBand {name} 4x",
        bytes_per_s=data_gbit * 1e9 / 8,
        source=_INFINIBAND,
        date="2024",
    )


LINKS: tuple[LinkPeak, ...] = (
    _pcie(3, "2010"), _pcie(4, "2017"), _pcie(5, "2019"), _pcie(6, "2022"),
    _nvlink(1, 4, 20, "P100", "2016"), _nvlink(2, 6, 25, "V100", "2017"), _nvlink(3, 12, 25, "A100", "2020"),
    _nvlink(4, 18, 25, "H100, H200", "2022"), _nvlink(5, 18, 50, "B200, GB200", "2024"),
    *(_ethernet(gbit) for gbit in (1, 10, 25, 40, 50, 100, 200, 400, 800)),
    _infiniband("QDR", 32), _infiniband("FDR", 54.3), _infiniband("EDR", 100), _infiniband("HDR", 200),
    _infiniband("NDR", 400), _infiniband("XDR", 800),
)  # fmt: skip

"""Peak rates of links, bytes/s per direction: PCIe, NVLink, Ethernet, InfiniBand.

Only these are compared with a measured busbw (efficiency against the link, per direction). Vendors print
NVLink and PCIe both ways, and networks in bit/s: 900 GB/s NVLink is 450 here, 400 Gbit/s is 50 GB/s.
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.core.errors import Unavailable

_SOURCES = {
    "pcie": "PCI-SIG base specifications 1.0 to 6.0: transfer rate x encoding",
    "nvlink": "NVIDIA Pascal, Volta, Ampere, Hopper and Blackwell architecture whitepapers",
    "ethernet": "IEEE 802.3: bit rate / 8, frame headers not taken off",
    "infiniband": "InfiniBand Trade Association roadmap: 4 lanes, data rate after encoding / 8",
}


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


def _link(kind: str, size: str, name: str, rate: float | Unavailable, date: str = "2024") -> LinkPeak:
    """rate: bytes/s."""
    assert not isinstance(rate, Unavailable)
    source = _SOURCES[kind.rstrip("0123456789")]
    return LinkPeak(key=f"{kind}-{size.lower()}", name=name, bytes_per_s=rate, source=source, date=date)


LINKS: tuple[LinkPeak, ...] = (
    *(
        _link(f"pcie{n}", "x16", f"PCIe {n}.0 x16", pcie_bytes_per_s(n, 16), date)
        for n, date in ((3, "2010"), (4, "2017"), (5, "2019"), (6, "2022"))
    ),
    *(
        _link(f"nvlink{n}", f"x{links}", f"NVLink {n}, {links} links ({gpu})", links * each_gb * 1e9, date)
        for n, links, each_gb, gpu, date in (
            (1, 4, 20, "P100", "2016"), (2, 6, 25, "V100", "2017"), (3, 12, 25, "A100", "2020"),
            (4, 18, 25, "H100, H200", "2022"), (5, 18, 50, "B200, GB200", "2024"),
        )
    ),
    *(
        _link("ethernet", f"{gbit}g", f"{gbit} Gbit Ethernet", gbit * 1e9 / 8)
        for gbit in (1, 10, 25, 40, 50, 100, 200, 400, 800)
    ),
    *(
        _link("infiniband", name, f"InfiniBand {name} 4x", gbit * 1e9 / 8)
        for name, gbit in (("QDR", 32), ("FDR", 54.3), ("EDR", 100), ("HDR", 200), ("NDR", 400), ("XDR", 800))
    ),
)  # fmt: skip

"""Peak rates: what an entry of the accelerator table holds, and those of links (PCIe, NVLink, Ethernet, InfiniBand).

Links are in bytes/s per direction, and only these are compared with a measured busbw. Vendors print NVLink and PCIe
both ways, and networks in bit/s: 900 GB/s NVLink is 450 here, 400 Gbit/s is 50 GB/s.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.core.words import unknown

_SOURCES = {
    "pcie": "PCI-SIG base specifications 1.0 to 6.0: transfer rate x encoding",
    "nvlink": "NVIDIA Pascal, Volta, Ampere, Hopper and Blackwell architecture whitepapers",
    "ethernet": "IEEE 802.3: bit rate / 8, frame headers not taken off",
    "infiniband": "InfiniBand Trade Association roadmap: 4 lanes, data rate after encoding / 8",
}


@record
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


def _link_peak(kind: str, size: str, name: str, rate: float | Unavailable, date: str = "2024") -> LinkPeak:
    """Make the peak of a host link from its ``rate`` in bytes/s."""
    assert not isinstance(rate, Unavailable)
    source = _SOURCES[kind.rstrip("0123456789")]
    return LinkPeak(key=f"{kind}-{size.lower()}", name=name, bytes_per_s=rate, source=source, date=date)


LINKS: tuple[LinkPeak, ...] = (
    *(
        _link_peak(f"pcie{n}", "x16", f"PCIe {n}.0 x16", pcie_bytes_per_s(n, 16), date)
        for n, date in ((3, "2010"), (4, "2017"), (5, "2019"), (6, "2022"))
    ),
    *(
        _link_peak(f"nvlink{n}", f"x{links}", f"NVLink {n}, {links} links ({gpu})", links * each_gb * 1e9, date)
        for n, links, each_gb, gpu, date in (
            (1, 4, 20, "P100", "2016"), (2, 6, 25, "V100", "2017"), (3, 12, 25, "A100", "2020"),
            (4, 18, 25, "H100, H200", "2022"), (5, 18, 50, "B200, GB200", "2024"),
        )
    ),
    *(
        _link_peak("ethernet", f"{gbit}g", f"{gbit} Gbit Ethernet", gbit * 1e9 / 8)
        for gbit in (1, 10, 25, 40, 50, 100, 200, 400, 800)
    ),
    *(
        _link_peak("infiniband", name, f"InfiniBand {name} 4x", gbit * 1e9 / 8)
        for name, gbit in (("QDR", 32), ("FDR", 54.3), ("EDR", 100), ("HDR", 200), ("NDR", 400), ("XDR", 800))
    ),
)  # fmt: skip


DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
"""fp32: the vector units. tf32 to fp4: matrix units, dense, FP32 accumulation (what torch uses)."""


@record
class LinkSpec:
    """GPU-to-GPU links of one device. Rates are per direction.

    count: links of the device. each_bytes_per_s: one link, one direction.
    peer_links: links to any one peer; all of them through a switch, one in an all-to-all mesh of eight.
    optional: a bridge sold apart; the card may be without.
    """

    name: str
    count: int
    each_bytes_per_s: float
    peer_links: int
    optional: bool = False

    @property
    def bytes_per_s(self) -> float:
        """What the device can send over all its links at once, bytes/s."""
        return self.count * self.each_bytes_per_s

    @property
    def peer_bytes_per_s(self) -> float:
        """What it can send to one peer, bytes/s."""
        return self.peer_links * self.each_bytes_per_s


@record
class Accelerator:
    """One device as torch counts them (one GCD of an MI250X, one GPU of a GB200).

    match: regular expressions that must match the whole device name that torch or NVML prints, prefix "NVIDIA" or
    "AMD" taken off, letter case ignored. total_bytes: what the driver reports (torch: total_memory); as marketed, where
    unknown. peak_flops_per_s: dense rates by dtype; an absent dtype has none. pcie: (generation, lanes). The rest: as
    accelerators.py says of the table. source and date: the vendor's document the values are from. confused_with: the
    number or the sibling that is commonly taken for this one.
    """

    key: str
    name: str
    vendor: str
    form: str
    match: tuple[str, ...]
    memory_bytes: int  # as marketed, GB = 1e9
    total_bytes: int
    memory_bytes_per_s: float
    peak_flops_per_s: Mapping[str, float]
    source: str
    date: str
    confused_with: str
    link: LinkSpec | None = None
    pcie: tuple[int, int] | None = None
    generation: str
    node: int
    rack: int
    adapter_bytes_per_s: float
    peer_access: bool
    reached: float
    watts: float | None

    def peak(self, dtype: str) -> float | Unavailable:
        """Dense peak of ``dtype`` in FLOP/s, the P of MFU = model FLOP / (time x n x P)."""
        if dtype not in DTYPES:
            return Unavailable(unknown("dtype", dtype, DTYPES))
        rate = self.peak_flops_per_s.get(dtype)
        return Unavailable(f"{self.name} has no {dtype} matrix rate") if rate is None else rate

    def matches(self, device_name: str) -> bool:
        """Whether ``device_name`` (normalised by :func:`normalise`) is this device, all of it."""
        return any(re.fullmatch(pattern, device_name, re.IGNORECASE) for pattern in self.match)


def normalise(device_name: str) -> str:
    """Drop vendor words, trademark signs and surplus blanks: ``NVIDIA GeForce RTX 4090`` -> ``GeForce RTX 4090``."""
    text = re.sub(r"\((?:R|TM)\)|[®™]", " ", device_name, flags=re.IGNORECASE)
    text = re.sub(r"^\s*(?:NVIDIA\s+Corporation|NVIDIA|AMD|Advanced Micro Devices)\s+", " ", text, flags=re.IGNORECASE)
    return " ".join(text.split())

"""NICs: network interfaces and RDMA devices with speed and state."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import psutil

from stepscope.core.errors import Unavailable
from stepscope.machine.probes._common import Facts, ProbeContext, probe, read_text
from stepscope.records.environment import NicFact

_ARPHRD_LOOPBACK = "772"
_ARPHRD_INFINIBAND = "32"
_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*Gb/sec")


@probe("network interfaces and RDMA devices")
def nics(context: ProbeContext) -> Facts | Unavailable:
    """Interfaces first, then RDMA devices (mlx5_0, ...), each sorted by name. Speeds in bit/s per direction."""
    try:
        interfaces = _interfaces(context.root / "sys/class/net")
    except OSError as error:
        return Unavailable(f"the network interfaces cannot be listed: {error}")
    return {"nics": (*interfaces, *rdma_devices(context.root / "sys/class/infiniband"))}


def _interfaces(sysfs: Path) -> tuple[NicFact, ...]:
    addresses = psutil.net_if_addrs()
    families = (socket.AF_INET, socket.AF_INET6)
    return tuple(
        NicFact(
            name=name,
            kind=interface_kind(sysfs / name, name),
            speed_bits_per_s=stats.speed * 1_000_000 if stats.speed > 0 else None,
            up=stats.isup,
            addresses=tuple(a.address.partition("%")[0] for a in addresses.get(name, ()) if a.family in families),
        )
        for name, stats in sorted(psutil.net_if_stats().items())
    )


def interface_kind(folder: Path, name: str) -> str:
    """loopback | infiniband | virtual (no hardware behind it) | ethernet."""
    kind = read_text(folder / "type")
    if kind == _ARPHRD_LOOPBACK or name in ("lo", "lo0"):
        return "loopback"
    if kind == _ARPHRD_INFINIBAND:
        return "infiniband"
    if folder.is_dir() and not (folder / "device").exists():
        return "virtual"
    return "ethernet"


def rdma_devices(folder: Path) -> tuple[NicFact, ...]:
    """Every port of every device under /sys/class/infiniband; ports after the first are named ``mlx5_0:2``."""
    found: list[NicFact] = []
    for port in sorted(folder.glob("*/ports/*")):
        device = port.parent.parent.name
        rate = _RATE.search(read_text(port / "rate") or "")
        ethernet = (read_text(port / "link_layer") or "").lower() == "ethernet"
        found.append(
            NicFact(
                name=device if port.name == "1" else f"{device}:{port.name}",
                kind="roce" if ethernet else "infiniband",
                speed_bits_per_s=round(float(rate[1]) * 1e9) if rate else None,
                up="ACTIVE" in (read_text(port / "state") or ""),
                rdma=True,
            )
        )
    return tuple(found)

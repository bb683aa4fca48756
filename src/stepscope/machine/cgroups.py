"""CPU and memory limits of the control group this process lives in, versions 1 and 2.

Source: Linux Documentation/admin-guide/cgroup-v2.rst (cpu.max, memory.max), cgroup-v1/memory.rst,
scheduler/sched-bwc.rst (cpu.cfs_quota_us). A limit of any ancestor binds as well, so all are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepscope.core.dataclass import record

_V1_NO_LIMIT_BYTES = 2**60
"""Version 1 writes 2**63 rounded down to a page for "no limit"; nothing this large is a real limit."""


@record
class CgroupLimits:
    """None: no limit of that kind."""

    cpu_quota_cores: float | None
    memory_limit_bytes: int | None
    memory_used_bytes: int | None  # of the group whose limit binds, page cache that can be dropped left out


def cgroup_limits(root: Path) -> CgroupLimits:
    """The tightest CPU quota and memory limit on the way from this process's group to the top."""
    groups = _own_groups(root)
    base = root / "sys/fs/cgroup"
    quotas: list[float] = []
    memories: list[tuple[int, int | None]] = []
    for controllers, relative in groups:
        if controllers == {""}:
            for top in (base, base / "unified"):
                for folder in _group_and_ancestors(top, relative):
                    quotas += _quota_v2(folder)
                    memories += _memory_v2(folder)
        if "cpu" in controllers:
            for folder in _group_and_ancestors(_v1_mount(base, controllers, "cpu"), relative):
                quotas += _quota_v1(folder)
        if "memory" in controllers:
            for folder in _group_and_ancestors(_v1_mount(base, controllers, "memory"), relative):
                memories += _memory_v1(folder)
    limit, used = min(memories, key=lambda item: item[0]) if memories else (None, None)
    return CgroupLimits(
        cpu_quota_cores=min(quotas) if quotas else None, memory_limit_bytes=limit, memory_used_bytes=used
    )


def _own_groups(root: Path) -> list[tuple[set[str], str]]:
    """Return (controllers, path) of each hierarchy in /proc/self/cgroup; version 2 has the controller ""."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    parts = [line.split(":", 2) for line in lines]
    return [(set(part[1].split(",")), part[2]) for part in parts if len(part) == 3]


def _v1_mount(base: Path, controllers: set[str], wanted: str) -> Path:
    joined = [base / name for name in ("cpu,cpuacct", "cpuacct,cpu") if controllers == {"cpu", "cpuacct"}]
    return next((path for path in joined if path.is_dir()), base / wanted)


def _group_and_ancestors(top: Path, relative: str) -> Iterator[Path]:
    """Yield the group's folder and its ancestors up to ``top``. Inside a container the path is often that of the host:
    then only ``top`` exists, and it is the container's own group."""
    parts = [part for part in relative.split("/") if part not in ("", "..")]
    for depth in range(len(parts), -1, -1):
        folder = top.joinpath(*parts[:depth])
        if folder.is_dir():
            yield folder


def _number_in(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def _quota_v2(folder: Path) -> list[float]:
    try:
        quota, _, period = (folder / "cpu.max").read_text(encoding="ascii").strip().partition(" ")
        return [] if quota == "max" else [int(quota) / int(period or 100_000)]
    except (OSError, ValueError, ZeroDivisionError):
        return []


def _quota_v1(folder: Path) -> list[float]:
    quota, period = _number_in(folder / "cpu.cfs_quota_us"), _number_in(folder / "cpu.cfs_period_us")
    return [quota / period] if quota and period and quota > 0 else []


def _memory_v2(folder: Path) -> list[tuple[int, int | None]]:
    limit = _number_in(folder / "memory.max")  # "max" is no number: no limit
    if limit is None:
        return []
    return [(limit, _used_bytes(_number_in(folder / "memory.current"), folder, "inactive_file"))]


def _memory_v1(folder: Path) -> list[tuple[int, int | None]]:
    limit = _number_in(folder / "memory.limit_in_bytes")
    if limit is None or limit >= _V1_NO_LIMIT_BYTES:
        return []
    return [(limit, _used_bytes(_number_in(folder / "memory.usage_in_bytes"), folder, "total_inactive_file"))]


def _used_bytes(charged: int | None, folder: Path, droppable: str) -> int | None:
    """Return the bytes charged to a group less what can be dropped; None: not known."""
    if charged is None:
        return None
    try:
        lines = (folder / "memory.stat").read_text(encoding="ascii").splitlines()
    except OSError:
        return charged
    stat = dict(line.split(" ", 1) for line in lines if " " in line)
    return max(charged - int(stat.get(droppable, "0")), 0)

"""The host launches one operator after the other and runs ahead; the device does them in that order.

``torch.compile`` makes one kernel of the operators between two products: it reads what it needs and writes what others
need, once.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import prod

from stepscope.core.dataclass import record
from stepscope.predict.dry.kernels import BARRIERS, item_bytes, kind_of, name_of
from stepscope.predict.step.roofline import Roofline
from stepscope.records.dry_run import DryOperator, DryRank

SYNCHRONISES = ("_local_scalar_dense", "item", "nonzero")


@record
class Clocks:
    """A step without collectives, ns. device_ns, host_ns: either clock after so many operators of the order. busy_ns: the
    device's time, by phase and kind of kernel; launches: likewise, kernels."""

    device_ns: tuple[float, ...]
    host_ns: tuple[float, ...]
    busy_ns: dict[tuple[str, str], float]
    launches: dict[tuple[str, str], int]

    @property
    def length_ns(self) -> float:
        """The step: until the device is done, and the host."""
        return max(self.device_ns[-1], self.host_ns[-1])


Work = tuple[float, float, str]
"""Device and host time of one position in the order, ns, and the kind of kernel."""


def run_clocks(rank: DryRank, work: Sequence[Work]) -> Clocks:
    """Let both clocks run through the order."""
    host = device = 0.0
    hosts, devices = [0.0], [0.0]
    busy: defaultdict[tuple[str, str], float] = defaultdict(float)
    launches: Counter[tuple[str, str]] = Counter()
    waits = [name_of(row) in SYNCHRONISES for row in rank.operators]
    phases = [row.phase for row in rank.operators]
    for index, (took, launch, kind) in zip(rank.order, work, strict=True):
        host += launch
        if took:
            device = max(device, host) + took
            key = phases[index], kind
            busy[key] += took
            launches[key] += 1
        if waits[index]:
            host = max(host, device)
        hosts.append(host)
        devices.append(device)
    return Clocks(device_ns=tuple(devices), host_ns=tuple(hosts), busy_ns=dict(busy), launches=dict(launches))


def gpu_work(rank: DryRank, roofline: Roofline, kernel_ns: Callable[[DryOperator], float]) -> list[Work]:
    """Return the time of each position of the order. kernel_ns: of an operator that runs alone."""
    c = roofline.calibration
    tensors = c.host_dtensor_us if "dtensor" in rank.wrappers else 0.0
    compiled = _compiled_rows(rank)
    rows: list[Work] = []
    for row, inside in zip(rank.operators, compiled, strict=True):
        kind = kind_of(row)
        eager = c.host_view_us if kind == "view" else c.host_kernel_us + tensors * (row.phase != "optimizer")
        launch = 0.0 if inside and kind == "view" else c.host_compiled_us if inside else eager
        rows.append((kernel_ns(row), 1e3 * launch, kind))
    work = [rows[index] for index in rank.order]
    if any(compiled):
        _fuse(rank, roofline, compiled, work)
    return work


def _compiled_rows(rank: DryRank) -> list[bool]:
    """Return, for each row, whether torch.compile would compile it."""
    paths = [re.sub(r"\d+", "*", path) for path in rank.compiled]
    if not paths:
        return [False] * len(rank.operators)
    pattern = re.compile("|".join(re.escape(path) + r"(\.|$)" if path else "" for path in paths))
    return [
        row.module is not None and row.phase in ("forward", "backward") and bool(pattern.match(row.module))
        for row in rank.operators
    ]


def _fuse(rank: DryRank, roofline: Roofline, compiled: Sequence[bool], work: list[Work]) -> None:
    """Give the operators of each group one kernel's time, at the last of them. Collectives part groups."""
    fusable = [
        inside and kind in ("memory", "copy") and name_of(row) not in BARRIERS
        for row, inside, kind in zip(rank.operators, compiled, map(kind_of, rank.operators), strict=True)
    ]
    passed = [inside and kind_of(row) == "view" for row, inside in zip(rank.operators, compiled, strict=True)]
    borders = {call.at for call in rank.calls} | {call.waited for call in rank.calls if call.waited is not None}
    costs: dict[tuple[int, ...], float] = {}
    group: list[int] = []
    launch = 1e3 * roofline.calibration.host_compiled_us

    def close() -> None:
        if not group:
            return
        key = tuple(rank.order[at] for at in group)
        if key not in costs:
            size = fused_bytes([rank.operators[index] for index in key])
            costs[key] = 1e9 * (roofline.moved(size * roofline.calibration.elementwise_factor) + roofline.least)
        for at in group:
            work[at] = (0.0, 0.0, "fused")
        work[group[-1]] = (costs[key], launch, "fused")
        group.clear()

    for at, index in enumerate(rank.order):
        if at in borders:
            close()
        if fusable[index]:
            group.append(at)
        elif not passed[index]:
            close()
    close()


def fused_bytes(rows: Iterable[DryOperator]) -> int:
    """Bytes that one kernel moves for these operators: what is read and was not made before it, and what is made and not
    read after. A tensor is known by its bytes alone: views have others of its facts."""
    made: Counter[int] = Counter()
    unread: Counter[int] = Counter()
    moved = 0
    for row in rows:
        for size, count in Counter(_sizes(row.shapes, row.dtypes)).items():
            inside = min(count, made[size])
            unread[size] = max(0, unread[size] - inside)
            moved += (count - inside) * size
        for size in _sizes(row.out_shapes, row.out_dtypes):
            made[size] += 1
            unread[size] += 1
    return moved + sum(count * size for size, count in unread.items())


def _sizes(shapes: Sequence[Sequence[int]], dtypes: Sequence[str]) -> Iterable[int]:
    """Yield the bytes of each tensor."""
    for shape, dtype in zip(shapes, dtypes, strict=False):
        yield prod(shape) * item_bytes(dtype)

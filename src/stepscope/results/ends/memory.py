"""What the message of a failed request says of a device's memory: how much of it is whose, and so what would help. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from stepscope.core.dataclass import record

_UNITS = {"B": 1, "BYTES": 1, "KIB": 1 << 10, "KB": 1 << 10, "MIB": 1 << 20, "MB": 1 << 20, "GIB": 1 << 30, "GB": 1 << 30,
          "TIB": 1 << 40}  # fmt: skip
_OWN = re.compile(r"this\s+process\s+has\s+([\d.]+ \w+)\s+memory\s+in\s+use")
_PROCESS = re.compile(r"Process\s+\d+\s+has\s+([\d.]+ \w+)\s+memory\s+in\s+use")

LEAST_SHARE = 0.05
"""Of the capacity: fragments, or memory of others, below it would not have made the difference for long."""

_ALLOWED = re.compile(r"([\d.]+ \w+) allowed;")

Cause = Literal["fragments", "others", "full", "limit", "refused", "unknown"]


@record
class FailedRequest:
    """Bytes of one device as a request for more failed. wanted: asked for. allocated: in tensors; unallocated: PyTorch keeps
    it reserved. allowed: what the process may take. others: neither PyTorch's of this process nor free."""

    wanted: int | None = None
    capacity: int | None = None
    free: int | None = None
    allocated: int | None = None
    unallocated: int | None = None
    others: int | None = None
    allowed: int | None = None

    @property
    def cause(self) -> Cause:
        """What the request failed of: the larger of fragments and of what others hold, where it would have sufficed."""
        if self.capacity is None or self.allocated is None:
            return "unknown"
        if self.allowed is not None:
            return "limit"
        if self.wanted is not None and (self.free or 0) > self.wanted + LEAST_SHARE * self.capacity:
            return "refused"
        least = max(LEAST_SHARE * self.capacity, self.wanted or 0)
        causes: list[tuple[int, Cause]] = [(self.unallocated or 0, "fragments"), (self.others or 0, "others")]
        size, cause = max(causes)
        return cause if size >= least else "full"


def size_of(text: str | None) -> int | None:
    """Return the bytes of ``23.65 GiB``."""
    number, _, unit = (text or "").partition(" ")
    try:
        return round(float(number) * _UNITS[unit.upper()])
    except (ValueError, KeyError):
        return None


def failed_request(values: Mapping[str, str]) -> FailedRequest:
    """Read the numbers of a sign ``oom``."""
    sizes = {name: size_of(values.get(name)) for name in ("wanted", "capacity", "free", "allocated", "unallocated")}
    reserved, allocated = size_of(values.get("reserved")), sizes["allocated"]
    if sizes["unallocated"] is None and reserved is not None and allocated is not None:
        sizes["unallocated"] = max(0, reserved - allocated)
    of_pytorch = None if allocated is None else allocated + (sizes["unallocated"] or 0)
    processes = values.get("processes", "")
    own, every = _OWN.search(processes), [size_of(text) or 0 for text in _PROCESS.findall(processes)]
    own_bytes = size_of(own[1]) if own else None
    if own_bytes is None and of_pytorch is not None:
        own_bytes = max(
            (size for size in every if size >= of_pytorch), default=of_pytorch
        )  # in a container it has another pid
    others, stated = None, own is not None or sizes["unallocated"] is not None
    if sizes["capacity"] is not None and sizes["free"] is not None and own_bytes is not None and stated:
        others = max(0, sizes["capacity"] - sizes["free"] - own_bytes)
    allowed = _ALLOWED.search(processes)
    return FailedRequest(**sizes, others=others, allowed=size_of(allowed[1]) if allowed else None)

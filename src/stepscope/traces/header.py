"""What a trace file says beside its events -> TraceMeta."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from stepscope.traces.events import ProcessGroup, TraceMeta

RANK_IN_NAME = (
    re.compile(r"(?<![a-z])rank[-_.]?(\d+)", re.IGNORECASE),
    re.compile(r"(?<![a-z])worker[-_.]?(\d+)", re.IGNORECASE),
)
_OWN = "stepscope."

_DEVICE = re.compile(
    r"(?<![a-z])(mtia|hpu|npu|tpu|xpu|gcu|mlu|musa|privateuse|ascend|neuron|gpu|cuda|hip|device|hardware|accelerator)",
    re.IGNORECASE,
)
"""In a category's or a process's name: MTIA, Gaudi (hpu), Ascend (npu), XPU, custom backends (privateuse1), and the like."""

_KNOWN = frozenset({"Trace", "cpu_instant_event", "external_correlation", "fwdbwd", "ac2g", "async_cpu_to_gpu"})
"""Categories of the profiler itself."""


def meta_from(
    header: dict[str, Any],
    *,
    thread_names: dict[tuple[str, str], str],
    window_ns: tuple[int, int] | None,
) -> TraceMeta:
    """Read the header leniently: a field of an unexpected type counts as not recorded."""
    distributed = header.get("distributedInfo")
    distributed = distributed if isinstance(distributed, dict) else {}
    devices = [d for d in _list(header.get("deviceProperties")) if isinstance(d, dict)]
    memory = _integer(devices[0].get("totalGlobalMem")) if devices else None
    return TraceMeta(
        rank=_first(_integer(distributed.get("rank")), _integer(header.get(f"{_OWN}rank"))),
        world_size=_first(_integer(distributed.get("world_size")), _integer(header.get(f"{_OWN}world_size"))),
        backend=_string(distributed.get("backend")),
        host=_string(header.get("host_name")),
        groups=tuple(_groups(_list(distributed.get("pg_config")))),
        device_names=tuple(str(d["name"]) for d in devices if d.get("name")),
        device_memory_bytes=memory,
        base_time_ns=_integer(header.get("baseTimeNanoseconds")),
        trace_window_ns=window_ns,
        with_stack=bool(header.get("with_stack")),
        record_shapes=bool(header.get("record_shapes")),
        stepscope={k.removeprefix(_OWN): _own(v) for k, v in header.items() if k.startswith(_OWN)},
        thread_names=thread_names,
    )


def unread_categories(foreign: Mapping[tuple[str, str], int], labels: Mapping[str, str]) -> dict[str, int]:
    """Spans by category, of unknown categories that a device's name or its process's is in.

    ``foreign``: spans by (category, process id); ``labels``: what processes are called.
    """
    found: Counter[str] = Counter()
    for (category, process), spans in foreign.items():
        label = labels.get(process, "")
        if category not in _KNOWN and (_DEVICE.search(category) or _DEVICE.search(label)):
            found[category or f"no category, process {label!r}"] += spans
    return dict(found.most_common())


def rank_from_name(path: Path) -> int | None:
    """The rank that a file name states (rank-3, rank_3, worker3), or else its folder; None when neither does."""
    for pattern in RANK_IN_NAME:
        if found := pattern.search(path.name) or pattern.fullmatch(path.parent.name):
            return int(found[1])
    return None


def _first(recorded: int | None, own: int | None) -> int | None:
    """What the profiler recorded; it does where torch.distributed is initialised. Else what our own metadata say."""
    return own if recorded is None else recorded


def _groups(entries: list[Any]) -> list[ProcessGroup]:
    groups = []
    for entry in entries:
        if not isinstance(entry, dict):
            continue
        ranks = [r for r in _list(entry.get("ranks")) if isinstance(r, int)]
        groups.append(
            ProcessGroup(
                name=str(entry.get("pg_name", "")),
                description=str(entry.get("pg_desc", "")),
                size=_integer(entry.get("pg_size")),
                ranks=tuple(ranks),
                backend=str(entry.get("backend_config", "")),
            )
        )
    return groups


def _own(value: Any) -> object:
    """Our metadata is JSON inside a JSON string."""
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _integer(value: Any) -> int | None:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value)
    return None


def _string(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None

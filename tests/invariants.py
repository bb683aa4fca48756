"""What holds for every document that a command prints with ``--json`` (docs/reference/metrics.md, What always holds)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

PARTS = ("compute_ns", "exposed_comm_ns", "exposed_memory_ns", "idle_ns")
_SHARE = re.compile(r"(^|_)(share|fraction|p_value|probability|accuracy|mfu|hfu|coverage)$")
_LENGTH = re.compile(
    r"^(window|compute|comm|memory|overlap|exposed|exposed_comm|exposed_memory|busy|idle|host|transfer|waiting|skew|step|"
    r"device_busy|largest|min|median|mean|max|p90|p99|total|lead)_ns$"
)
_ORDERS = (
    ("min_ns", "median_ns", "max_ns"),
    ("min_ns", "mean_ns", "max_ns"),
    ("p90_ns", "p99_ns", "max_ns"),
    ("low", "value", "high"),
    ("low", "ratio", "high"),
)
_SUPERLINEAR = 1.05
_ROUNDING = 1e-9


def broken(document: Mapping[str, Any]) -> list[str]:
    """Every place where one does not hold, in words; empty where all do."""
    found = [f"{path}: {text}" for path, each in _objects(document, "") for text in _of_object(each)]
    if document.get("schema", "").startswith("stepscope.trace/"):
        found += _of_ranks(document)
    if "findings" in document and document.get("scaling"):
        found += _of_scaling(document)
    return found


def _objects(part: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    if isinstance(part, dict):
        yield path, part
        for key, each in part.items():
            yield from _objects(each, f"{path}.{key}")
    elif isinstance(part, list):
        for at, each in enumerate(part):
            yield from _objects(each, f"{path}[{at}]")


def _numbers(part: Mapping[str, Any], *keys: str) -> list[float] | None:
    values = [part.get(key) for key in keys]
    return values if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values) else None  # type: ignore[return-value]


def _of_object(part: dict[str, Any]) -> Iterator[str]:
    for key, value in part.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            continue
        if not math.isfinite(value):
            yield f"{key} is {value}"
        # Above its peak no device computes: the document says so itself.
        if _SHARE.search(key) and not 0 <= value <= 1 + _ROUNDING and not part.get("error"):
            yield f"{key} is {value}, no share of a whole"
        if _LENGTH.match(key) and value < 0:
            yield f"{key} is {value}, a negative time"
    if (parts := _numbers(part, *PARTS, "window_ns")) and sum(parts[:4]) != parts[4]:
        yield f"the parts sum to {sum(parts[:4])}, the window is {parts[4]}"
    if (shares := _numbers(part, *(key.replace("_ns", "_fraction") for key in PARTS))) and not math.isclose(
        sum(shares), 1
    ):
        yield f"the shares of the window sum to {sum(shares)}"
    if (comm := _numbers(part, "exposed_comm_ns", "comm_ns")) and comm[0] > comm[1]:
        yield f"{comm[0]} of {comm[1]} ns of communication are exposed"
    if (hidden := _numbers(part, "overlap_ns", "exposed_comm_ns", "comm_ns")) and hidden[0] + hidden[1] != hidden[2]:
        yield "hidden and exposed communication are not all of it"
    if (used := _numbers(part, "mfu", "hfu")) and used[1] < used[0] * (1 - _ROUNDING) and not part.get("error"):
        yield f"HFU {used[1]} is below MFU {used[0]}"
    for keys in _ORDERS:
        ordered = _numbers(part, *keys)
        if ordered and not ordered[0] <= ordered[1] + _ROUNDING * abs(ordered[1]) <= ordered[2] + 2 * _ROUNDING * abs(
            ordered[2]
        ):
            yield f"{' <= '.join(keys)} does not hold: {ordered}"
    scaled = _numbers(part, "speedup", "efficiency", "world_size", "baseline_world_size")
    if scaled and not math.isclose(scaled[1], scaled[0] * scaled[3] / scaled[2]):
        yield f"efficiency {scaled[1]} is not the speed-up {scaled[0]} on {scaled[2]} ranks against {scaled[3]}"
    if (most := _numbers(part, "efficiency")) and most[0] > _SUPERLINEAR and part.get("rating") is not None:
        yield f"efficiency {most[0]} is rated {part['rating']}"


def _of_ranks(document: Mapping[str, Any]) -> Iterator[str]:
    """Phases, causes of idle time and steps of a rank against its budget."""
    for rank in document.get("ranks", ()):
        number = rank["rank"]
        mine = {
            key: [each for each in document.get(key, ()) if each["rank"] == number]
            for key in ("phases", "idle", "steps")
        }
        for column in (*PARTS, "comm_ns"):
            if mine["phases"] and sum(each[column] for each in mine["phases"]) != rank[column]:
                yield f"rank {number}: {column} of its phases sum to another time than {rank[column]}"
        if mine["idle"] and sum(each["idle_ns"] for each in mine["idle"]) != rank["idle_ns"]:
            yield f"rank {number}: the causes of its idle time do not sum to it"
        if sum(each["window_ns"] for each in mine["steps"]) > rank["window_ns"]:
            yield f"rank {number}: its steps are longer than its window"


def _of_scaling(document: Mapping[str, Any]) -> Iterator[str]:
    high = [row["run_id"] for row in document["scaling"] if (row.get("efficiency") or 0) > _SUPERLINEAR]
    if high and not any(finding["rule"] == "impossible-figures" for finding in document["findings"]):
        yield f"an efficiency above {_SUPERLINEAR:.0%} has no reason: {', '.join(high)}"

"""A document of a command as leaves: path -> number, truth value, null or short key. Texts are not among them.

leaves(document)     every leaf; a text becomes TEXT, so that its presence is compared and its words are not
condensed(leaves)    where a path pattern has many leaves: their count, sum, smallest, largest and a digest
worded, words_of_findings   what is said, too
differences(a, b)    the paths at which two sets of leaves differ
"""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Leaf = float | int | bool | str | None
Leaves = dict[str, Leaf]

TEXT = "(text)"
ABSENT = "(absent)"
RELATIVE = 1e-9
MANY = 24
"""More leaves of one path pattern are condensed."""
FEW = 8
"""The same in a document of more than LARGE leaves."""
LARGE = 1500
DIGITS = 7
"""Of the numbers in a digest: far from what the order of a sum can change."""

KEYS = frozenset({
    "rule", "severity", "subject", "runs", "priority", "case", "wrong_runs", "job", "confidence", "kind", "format", "metric",
    "verdict", "status", "op", "dtype", "reduce_op", "mode", "pattern", "pacing", "strategy", "workload", "dataset",
    "precision", "scaling", "rating", "dominant", "backend", "device", "group", "cause", "phase", "limit", "bound_by",
    "baseline", "schema", "side", "replicate", "higher_is_better", "mesh", "gpu", "network", "algorithm", "protocol",
    "layout_text", "stop_reason", "batch_rule", "optimizer", "schedule", "recompute", "balance", "run_id", "state",
    "direction", "link", "unit", "method", "family", "model", "reason_key", "late_kind", "source_kind", "axis", "levels",
})  # fmt: skip
"""Keys whose strings a program may depend on: they are compared where they are short."""

LEFT_OUT = frozenset({
    "created", "tool_version", "command", "argv", "evidence", "advice", "notes", "assumptions", "warnings", "doubts",
    "casts_doubt", "screen", "host", "hosts_named", "environment", "machine", "path", "title", "files", "description",
})  # fmt: skip
"""Keys whose values are words, or belong to the machine, the day or the folder: only that they are there is compared."""

GRADES = frozenset({"certain", "measured", "likely", "estimated", "computed", "suspected", "possible"})
"""The first word of a finding's confidence; the others say why."""

RULES_ALONE = frozenset({"skipped", "quiet"})
"""Of checks that found nothing, which they are is all that is compared: the rest are words."""

OF_FILES = frozenset({"files_found", "sources"})
"""Lists of what a path holds: the kinds of files there are words, their bytes the packer's."""

_SHORT = re.compile(r"^[\w .:+=,%#()<>*&/→\[\]-]{1,80}$")
_INDEX = re.compile(r"\[\d+\]")
_NUMBER = re.compile(r"^-?\d+(\.\d+)?([eE][+-]?\d+)?$")


def leaves(document: Any, path: str = "") -> Leaves:
    """Every leaf of ``document`` by its path, in the document's order."""
    return dict(_leaves(document, path, ""))


def worded(part: Any, path: str = "") -> Leaves:
    """Every leaf of ``part`` with its words."""
    if not isinstance(part, dict | list) or not part:
        return {path: json.dumps(part) if isinstance(part, dict | list) else part}
    items = part.items() if isinstance(part, dict) else ((f"[{at}]", each) for at, each in enumerate(part))
    mark = "." if isinstance(part, dict) and path else ""
    return {name: leaf for key, each in items for name, leaf in worded(each, f"{path}{mark}{key}").items()}


def words_of_findings(document: Any) -> Leaves:
    """A digest of all that each finding of ``diagnose`` says, by rule: it is compared, and not kept."""
    seen: Counter[str] = Counter()
    told: Leaves = {}
    for finding in document.get("findings", ()):
        said = [leaf for leaf in worded(finding).values() if isinstance(leaf, str)]
        path = f"findings[{finding['rule']}#{seen[finding['rule']]}]#words"
        told[path] = hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]
        seen[finding["rule"]] += 1
    return told


def _leaves(part: Any, path: str, key: str) -> Iterator[tuple[str, Leaf]]:
    """``total_ns`` of a document and ``estimate_ns``: what ``bench --plan`` expects of this machine's cores;
    ``silent_s``: what has passed since a job's last step."""
    if key in LEFT_OUT or path in ("total_ns", "silent_s") or key == "estimate_ns":
        yield path, TEXT
    elif key in OF_FILES and isinstance(part, list):
        yield f"{path}#count", len(part)
        yield f"{path}#files", sum(each.get("files", 0) for each in part)
    elif isinstance(part, dict):
        if not part:
            yield path, "{}"
        for name, each in part.items():
            yield from _leaves(each, f"{path}.{name}" if path else name, name)
    elif isinstance(part, list):
        yield from _items(part, path, key)
    elif isinstance(part, str):
        yield path, _string(part, key)
    else:
        yield path, part


def _items(part: list[Any], path: str, key: str) -> Iterator[tuple[str, Leaf]]:
    """Findings and checks by rule; everything else by place. A list of words is one text, however many they are."""
    if not part:
        yield path, TEXT if key in LEFT_OUT else "[]"
    elif key not in KEYS and all(isinstance(each, str) for each in part):
        yield path, TEXT
    elif all(isinstance(each, dict) and isinstance(each.get("rule"), str) for each in part):
        if key in RULES_ALONE:
            yield from ((f"{path}[{each['rule']}]", True) for each in part)
            return
        yield f"{path}.order", ",".join(each["rule"] for each in part)
        seen: Counter[str] = Counter()
        for each in part:
            yield from _leaves(each, f"{path}[{each['rule']}#{seen[each['rule']]}]", "")
            seen[each["rule"]] += 1
    else:
        for at, each in enumerate(part):
            yield from _leaves(each, f"{path}[{at}]", key)


def _string(text: str, key: str) -> str:
    if key == "confidence":
        text = re.split(r"[:, ]", text)[0]
        return text if text in GRADES else TEXT
    if key in KEYS and _SHORT.match(text) and not text.startswith("/"):
        return text
    return TEXT


def table(path: Path) -> Any:
    """A CSV file as columns: numbers as numbers, other cells as texts, empty ones as null."""
    with path.open(newline="") as file:
        rows = list(csv.reader(file))
    head, body = (rows[0], rows[1:]) if rows else ([], [])
    seen: Counter[str] = Counter()
    columns = {}
    for place, name in enumerate(head):
        seen[name] += 1
        number = f"~{seen[name]}" if seen[name] > 1 else ""
        columns[f"{name}{number}"] = [_cell(row[place]) for row in body if place < len(row)]
    return columns


def _cell(text: str) -> Any:
    if _NUMBER.match(text):
        return float(text) if any(sign in text for sign in ".eE") else int(text)
    return text or None


def condensed(found: Leaves) -> Leaves:
    """``found`` with every pattern of many leaves as five figures; what stands in findings is kept leaf by leaf."""
    patterns: dict[str, list[Leaf]] = defaultdict(list)
    for path, value in found.items():
        patterns[_INDEX.sub("[*]", path)].append(value)
    most = FEW if len(found) > LARGE else MANY
    told: Leaves = {}
    for path, value in found.items():
        pattern = _INDEX.sub("[*]", path)
        values = patterns[pattern]
        if len(values) <= most:
            told[path] = value
        elif f"{pattern}#count" not in told:
            told |= _digest(pattern, values)
    return told


def _digest(pattern: str, values: list[Leaf]) -> Leaves:
    numbers = [each for each in values if isinstance(each, int | float) and not isinstance(each, bool)]
    told: Leaves = {f"{pattern}#count": len(values)}
    if numbers:
        told |= {
            f"{pattern}#sum": math.fsum(numbers),
            f"{pattern}#min": min(numbers),
            f"{pattern}#max": max(numbers),
        }
    if set(values) == {TEXT}:
        return told
    words = (f"{each:.{DIGITS}g}" if isinstance(each, float) else str(each) for each in values)
    return told | {f"{pattern}#digest": hashlib.sha256("\n".join(words).encode()).hexdigest()[:16]}


def differences(expected: Mapping[str, Leaf], got: Mapping[str, Leaf]) -> list[tuple[str, Leaf, Leaf]]:
    """(path, expected, got) wherever they differ, in the order of what was expected."""
    paths = [*expected, *(path for path in got if path not in expected)]
    pairs = ((path, expected.get(path, ABSENT), got.get(path, ABSENT)) for path in paths)
    return [each for each in pairs if not same(each[1], each[2])]


def same(one: Leaf, other: Leaf) -> bool:
    """Equal; numbers to RELATIVE, whole or not."""
    if isinstance(one, bool) or isinstance(other, bool) or isinstance(one, str | None) or isinstance(other, str | None):
        return type(one) is type(other) and one == other
    return math.isclose(one, other, rel_tol=RELATIVE) or (math.isnan(one) and math.isnan(other))

"""Traces of several captures in one folder: told apart by what their files are called, or by when they were taken."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from stepscope.records.trace_summary import RankPass
from stepscope.traces.header import RANK_IN_NAME

_ENDING = re.compile(r"(\.pt)?(\.trace)?(\.json|\.sqlite)(\.gz|\.zst)?$")

_NUMBER = re.compile(r"\d{5,}")
"""Process ids and times, of which each file has its own."""


def captures(passes: Sequence[RankPass]) -> dict[str, list[RankPass]] | None:
    """The captures by name, each with every rank once: by file names without the rank, or by time, whichever makes fewer.
    None where ranks are there twice and neither tells them apart, or one file is a copy of another: the same rank, taken
    at the same time.
    """
    times = [(each.facts.rank, each.facts.unix_ns) for each in passes if each.facts.unix_ns is not None]
    if len(set(times)) < len(times):
        return None
    told = [
        groups
        for groups in (_by_name(passes), _by_time(passes))
        if len(groups) > 1 and all(_once_each(group) for group in groups.values())
    ]
    return min(told, key=len, default=None)


def _once_each(passes: Iterable[RankPass]) -> bool:
    return max(Counter(p.facts.rank for p in passes).values(), default=0) <= 1


def _by_name(passes: Sequence[RankPass]) -> dict[str, list[RankPass]]:
    keys = [_place_and_stem(Path(each.facts.file)) for each in passes]
    one_place = len({place for place, _ in keys}) == 1
    groups: dict[str, list[RankPass]] = {}
    for each, (place, stem) in zip(passes, keys, strict=True):
        name = stem if one_place and stem else f"{place.name}/{stem}".rstrip("/")
        groups.setdefault(name, []).append(each)
    return groups


def _place_and_stem(path: Path) -> tuple[Path, str]:
    """What the files of one capture have in common: folder and name without rank, ending, process ids and times."""
    place = path.parent
    if any(pattern.search(place.name) for pattern in RANK_IN_NAME):
        place = place.parent
    name = _ENDING.sub("", path.name)
    for pattern in (*RANK_IN_NAME, _NUMBER):
        name = pattern.sub("", name)
    return place, name.strip("-_. ")


def _by_time(passes: Sequence[RankPass]) -> dict[str, list[RankPass]]:
    """Traces whose stretches of time overlap are of one capture; none where a time is unknown."""
    known = [(each.facts.unix_ns, each) for each in passes if each.facts.unix_ns is not None]
    if len(known) < len(passes):
        return {}
    groups: list[list[RankPass]] = []
    end = 0
    for (start, stop), each in sorted(known, key=lambda item: item[0]):
        if not groups or start >= end:
            groups.append([])
        groups[-1].append(each)
        end = max(end, stop)
    return {f"capture {i + 1}": group for i, group in enumerate(groups)}

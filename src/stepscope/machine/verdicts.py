"""Runs all checks over a record, and makes the document of ``doctor --json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepscope.core.dataclass import record
from stepscope.core.errors import Unavailable
from stepscope.machine.checks import REGISTRY
from stepscope.machine.checks.links import nvlinks_per_gpu
from stepscope.machine.judging import Outcome, Status, topology_of
from stepscope.machine.topology import Topology, has_nvswitch
from stepscope.records.codec import headed, to_builtins
from stepscope.records.environment import EnvironmentRecord

SECTIONS = ("environment", "gpus", "links", "network", "launcher")
"""Sections in the order they are shown; those of third-party checks follow."""


@record
class CheckVerdict:
    """One check's outcome; ``key`` is the check's file name."""

    key: str
    section: str
    title: str
    outcome: Outcome


def judge(record: EnvironmentRecord) -> tuple[CheckVerdict, ...]:
    """Judge a record by every check, in the order they are shown. Pure: the same record gives the same verdicts anywhere."""
    checks = [(key, REGISTRY.load(key)) for key in REGISTRY.names()]
    checks.sort(key=lambda item: (_section_place(item[1].section), item[1].section, item[1].order, item[0]))
    return tuple(
        CheckVerdict(key=key, section=check.section, title=check.title, outcome=check.run(record))
        for key, check in checks
    )


def tally(verdicts: tuple[CheckVerdict, ...]) -> Mapping[str, int]:
    """How many checks ended in each status: ``{"pass": 12, "warn": 2, "fail": 0, "skip": 9}``."""
    return {status.value: sum(v.outcome.status is status for v in verdicts) for status in Status}


def _section_place(section: str) -> int:
    return SECTIONS.index(section) if section in SECTIONS else len(SECTIONS)


def doctor_document(record: EnvironmentRecord, verdicts: tuple[CheckVerdict, ...]) -> dict[str, Any]:
    """``doctor --json``: schema stepscope.doctor/1."""
    topology = topology_of(record)
    return {
        **headed("doctor/1"),
        "environment": to_builtins(record),
        "links": None if isinstance(topology, Unavailable) else links_document(topology, nvlinks_per_gpu(record)),
        "checks": [
            {
                "key": verdict.key,
                "section": verdict.section,
                "title": verdict.title,
                "status": verdict.outcome.status.value,
                "message": verdict.outcome.message,
                "fix": verdict.outcome.fix,
            }
            for verdict in verdicts
        ],
        "summary": dict(tally(verdicts)),
    }


def links_document(topology: Topology, links_per_gpu: int | None) -> dict[str, Any]:
    """The parsed link matrix; unknown links are null."""

    def pair(a: str, b: str) -> dict[str, Any]:
        link = topology.link(a, b)
        return {"a": a, "b": b, "kind": link.kind if link else None, "nvlinks": link.nvlinks if link else None}

    gpus, nics = topology.gpus, topology.nics
    return {
        "gpus": [
            {
                "name": gpu.name,
                "cpu_affinity": gpu.cpu_affinity,
                "numa_affinity": gpu.numa_affinity,
                "nearest_nics": topology.nearest_nics(gpu.name),
            }
            for gpu in gpus
        ],
        "nics": [{"name": nic.name, "device": nic.label or nic.name} for nic in nics],
        "gpu_pairs": [pair(a, b) for a, b in topology.gpu_pairs()],
        "gpu_nic_pairs": [pair(gpu.name, nic.name) for gpu in gpus for nic in nics],
        "fast_pairs": topology.fast_pairs(),
        "socket_crossing_pairs": topology.socket_crossing_pairs(),
        "nvlink_islands": topology.nvlink_islands(),
        "nvswitch": has_nvswitch(topology, links_per_gpu=links_per_gpu),
        "problems": topology.problems,
    }

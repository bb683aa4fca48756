"""This version of NCCL has a documented bug that makes jobs hang or corrupts data.

What
----
Compares NCCL's version, from its log or from torch, with a short list of versions whose release notes (or those of the
fixed version) name a hang or wrong data. Slowness and bugs of rarely used features are not listed.

Why
---
Such bugs look like faults of the training code (a hang once a week, a loss that does not fall) and cost days.

Known problems
--------------
Each bug needs its circumstances, which the finding names; without them the version is fine. Vendors backport: a patched
build keeps the old number. The list is not complete.

References
----------
NCCL release notes 2.8.4 (uneven send/recv), 2.18.1 (known issues: LL128 where a NIC shares its PCIe switch with one GPU),
2.29.3 (ARM); NVIDIA nccl issue 596 (an NVLink down, 2.10.3).
"""

from __future__ import annotations

import re

from stepscope.core.dataclass import record
from stepscope.core.words import counted
from stepscope.diagnose.rule import Finding, Rule, Statement, finding
from stepscope.results.evidence import Evidence

Version = tuple[int, ...]


@record
class _Bug:
    """first: the first version known to have it, before: the first without it. gpus: limited to; empty: all. several: it
    needs several hosts. sure: fires only where the GPU is known to be one of ``gpus``; else also where none is named.
    """

    first: Version
    before: Version
    what: str
    when: str
    workaround: str | None
    source: str
    gpus: tuple[str, ...] = ()
    several: bool = False
    sure: bool = False


BUGS = (
    _Bug(
        first=(2, 7, 3), before=(2, 8, 4), what="all_to_all with uneven splits can hang",
        when="jobs with mixtures of experts or embedding exchange", workaround="export NCCL_LAUNCH_MODE=PARALLEL",
        source="NCCL release notes 2.8.4",
    ),
    _Bug(
        first=(2, 10, 3), before=(2, 10, 4), what="all_gather gives wrong data when an NVLink is down",
        when="V100 and A100 machines with NVSwitch, on several hosts", workaround="export NCCL_PROTO=^LL128",
        source="NVIDIA nccl issue 596", gpus=("V100", "A100", "A800"), several=True,
    ),
    _Bug(
        first=(2, 18, 1), before=(2, 18, 2), what="all_reduce can give wrong data (LL128 is not safe there)",
        when="H100 machines where a network card shares its PCIe switch with one GPU, on several hosts",
        workaround="export NCCL_PROTO=^LL128", source="NCCL release notes 2.18.1, known issues",
        gpus=("H100", "H800", "H200"), several=True,
    ),
    _Bug(
        first=(2, 0, 0), before=(2, 29, 3), what="collectives can hang without any error",
        when="ARM hosts (GH200, GB200), NCCL built with gcc before 10", workaround=None,
        source="NCCL release notes 2.29.3", gpus=("GH200", "GB200", "GB300"), sure=True,
    ),
)  # fmt: skip


def check(evidence: Evidence) -> Statement:
    """Look for: the NCCL version has a documented hang or wrong result."""
    stated = [v for log in evidence.nccl for v in log.versions]
    torch = evidence.environment.torch if evidence.environment is not None else None
    if torch is not None and torch.nccl_version and torch.hip_version is None:
        stated.append(torch.nccl_version)
    versions = {version: text for text in dict.fromkeys(stated) if (version := _parsed_version(text))}
    if not versions:
        return RULE.blind
    hardware = " ".join([*evidence.hardware, *(torch.device_names if torch is not None else ())])
    listed = [(b, text) for version, text in sorted(versions.items()) for b in BUGS if b.first <= version < b.before]
    elsewhere = ", ".join(dict.fromkeys(text for bug, text in listed if not bug.sure))
    return [
        _nccl_old_version_finding(bug, text, hardware) for bug, text in listed if _may_concern(bug, hardware, evidence)
    ] or (
        f"{elsewhere}: its listed bugs concern other GPUs, or jobs on several hosts"
        if elsewhere
        else f"{', '.join(versions.values())}: none of {counted(len(BUGS), 'listed bug')} affects it"
    )


def _may_concern(bug: _Bug, hardware: str, evidence: Evidence) -> bool:
    """Whether nothing that is known of the machine rules the bug out."""
    if bug.several and evidence.nccl and all(c.hosts == 1 for log in evidence.nccl for c in log.communicators):
        return not any(log.communicators for log in evidence.nccl)
    if not bug.gpus or (not hardware and not bug.sure):
        return True
    return any(name in hardware for name in bug.gpus)


def _parsed_version(text: str) -> Version:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return () if match is None else tuple(map(int, match.groups()))


def _nccl_old_version_finding(bug: _Bug, version: str, hardware: str) -> Finding:
    """Return the finding, with evidence, stake and advice: the NCCL version has a documented hang or wrong result."""
    met = bug.sure or any(name in hardware for name in bug.gpus)  # else the version alone is known
    first, before = (".".join(map(str, number)) for number in (bug.first, bug.before))
    return finding(
        f"NCCL {version}: {bug.what}",
        f"where: {bug.when}",
        f"in {first} and later, before {before} ({bug.source})",
        severity="warning" if met else "info",
        confidence="likely: the version has the bug; whether this job meets it depends on the machine",
        advice=[
            f"update NCCL to {before} or later; torch includes it",
            bug.workaround is not None and ("until then, use the workaround", bug.workaround),
        ],
        of=f"NCCL {version}",
    )


RULE = Rule(
    symptom="the NCCL version has a documented hang or wrong result",
    sees=("nccl", "environment"),
    unseen="no NCCL version was recorded",
    unseen_command="export NCCL_DEBUG=VERSION",
    look=check,
    looks_at="nccl, environment",
    decided_by="known: 0 documented bugs",
    protocol=1,
)

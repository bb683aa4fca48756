"""A tool of the machine reports a fault: a GPU too hot, memory errors, a port that is down.

What
----
What ``nvidia-smi -q``, ``nvidia-smi`` and ``ibstat`` say themselves, by a table: clocks lowered for temperature or by a
power brake, uncorrected errors of memory since the driver was loaded, rows or pages that wait for a reset, an NVLink fabric
that is not ready, ports of the network that are not active.

Why
---
All ranks wait for the slowest GPU, an uncorrected error ends a job, and a port that is down sends its traffic elsewhere.

Known problems
--------------
It is the state of one moment. The software power cap is normal under full load and no fault. An unused port is
reported where it is InfiniBand; one of Ethernet only where no port is active.

References
----------
NVML API, nvmlClocksEventReasons; NVIDIA, GPU Memory Error Management (row remapping and its RMA policy); ibstat(8) and
ibportstate(8) of infiniband-diags (read 2026-11).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from stepscope.core.words import counted, listed
from stepscope.diagnose.rule import Finding, Rule, Statement, finding, skipped
from stepscope.records.finding import Severity
from stepscope.records.imported import MachineReading
from stepscope.results.evidence import Evidence


class Fault(NamedTuple):
    """What a device's facts mean: ``group``, ``facts`` (pattern of names), ``bad`` (pattern of values), ``about`` (what is
    absent where they are not; empty: not said), ``title``, ``advice`` with its ``command``. Of a group the first that a
    device has counts.
    """

    group: str
    facts: str
    bad: str
    about: str
    title: str
    advice: str
    command: str | None
    severity: Severity = "problem"


_CLOCKS = "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE"
_RESET = ("drain the host, then reset the GPU or restart the host", "nvidia-smi --gpu-reset -i INDEX")
_LOST = ("restart the host; if it comes again, see the slot, the power cable and the card", "dmesg -T | grep -i xid")

FAULTS = tuple(
    Fault(*row)
    for row in (
        (
            "lost", ".*", "(?i).*GPU is lost.*|.*GPU requires reset.*", "", "the driver has lost the GPU", *_LOST,
        ),
        (
            "lost", "product name|volatile uncorr\\. ecc|device handle", "ERR!|Unknown Error.*", "lost GPU",
            "the driver cannot read the GPU", *_LOST,
        ),
        (
            "lost", "driver", ".*", "", "the driver does not run here, or finds no GPU",
            "see that the driver is loaded and fits the kernel, and in a container that GPUs are passed on",
            "cat /proc/driver/nvidia/version; dmesg | grep -i nvrm",
        ),
        (
            "clocks", "[hs]w thermal slowdown", "Active", "thermal slowdown", "too hot: thermal slowdown lowers the clocks",
            "see fans, air flow, coolant and the room; then watch the temperature under load", _CLOCKS,
        ),
        (
            "clocks", "hw power brake slowdown", "Active", "power brake",
            "the power brake lowers the clocks: the host's power supply asks for it",
            "see the power supplies, their cables and the limit of the rack", "ipmitool sel list",
        ),
        (
            "clocks", "hw slowdown", "Active", "hardware slowdown",
            "hardware slowdown lowers the clocks: temperature, power brake or too much power",
            "see which of them it is, under load", _CLOCKS,
        ),
        (
            "memory", "remapped rows remapping failure occurred", "Yes", "failed row remapping",
            "a row of its memory cannot be replaced: the GPU is defective",
            "take it out of service and ask for a replacement (RMA)", "nvidia-smi -q -d ROW_REMAPPER,ECC",
        ),
        (
            "memory", r"volatile (?:[sd]ram uncorrectable.*|double bit .*|uncorr\. ecc)", "[1-9]\\d*",
            "uncorrected memory errors", "uncorrected memory errors since the driver was loaded", *_RESET,
        ),
        (
            "memory", "(?:remapped rows|retired pages) pending.*", "Yes", "rows or pages to replace",
            "a row or page of its memory waits for a reset to be replaced", *_RESET, "warning",
        ),
        (
            "memory", "gpu recovery action|.*reset required", "Yes|.*Reset.*|.*Reboot.*|Drain.*", "reset asked for",
            "the driver asks for a reset", *_RESET,
        ),
        (
            "fabric", "fabric state", "In Progress|Not Started", "missing fabric",
            "the NVLink fabric is not ready, so that CUDA does not start",
            "see whether Fabric Manager runs", "systemctl status nvidia-fabricmanager",
        ),
        (
            "port", "state", "(?i:init.*)", "port without subnet manager",
            "the link is up, and no subnet manager has configured the port (Initializing)",
            "start a subnet manager, on the switch or as opensm on one host", "sminfo; systemctl status opensm",
        ),
        (
            "port", "physical state", "(?i:polling)", "port without signal",
            "down, no signal from the other end of the cable (Polling)",
            "see the cable, the transceiver and the switch's port", "ibstat; mlxlink -d mlx5_0 -m -c",
        ),
        (
            "port", "state|physical state", "(?i:down|disabled|sleep|armed|link ?error.*|phy.*)", "port that is down",
            "the port is not active",
            "if it should be in use, see who disabled it, its cable and the switch", "ibportstate LID PORT query", "warning",
        ),
    )
)  # fmt: skip


def check(evidence: Evidence) -> Statement:
    """Look for: a tool of the machine reports a fault of a GPU or a port."""
    states = [reading for reading in evidence.readings if not reading.bytes_per_s]
    active = any(reading.facts.get("state", "").upper() == "ACTIVE" for reading in states)
    looked = [r for r in states if not (active and r.facts.get("link layer") == "Ethernet")]
    named: set[tuple[str, str]] = set()
    findings, absent = [], []
    for fault in FAULTS:
        bad, seen = [], False
        for r in looked:
            stated = {name: value for name, value in r.facts.items() if re.fullmatch(fault.facts, name)}
            wrong = [f"{name}: {value}" for name, value in stated.items() if re.fullmatch(fault.bad, value)]
            seen = seen or bool(stated)
            if wrong and (fault.group, r.device) not in named:
                named.add((fault.group, r.device))
                bad.append((r, wrong))
        if bad:
            findings.append(_device_fault_finding(fault, bad))
        elif seen and fault.about:
            absent.append(f"no {fault.about}")
    capped = sum(reading.facts.get("sw power cap") == "Active" for reading in looked)
    return findings or (
        finding(
            f"{counted(len(looked), 'device')}: {', '.join(absent)}",
            capped > 0
            and f"SW Power Cap is active on {counted(capped, 'GPU')}: at the power limit, as under full load",
            severity="info",
            confidence="reported by the driver, at one moment",
        )
        if absent
        else skipped("these readings are of rates alone", "nvidia-smi -q")
    )


def _device_fault_finding(fault: Fault, bad: Sequence[tuple[MachineReading, list[str]]]) -> Finding:
    """Return the finding of one fault, with the devices that have it."""
    return finding(
        f"{listed([r.device for r, _ in bad], at_most=4)}: {fault.title}",
        [
            f"{r.device}: {', '.join(wrong)}; temperature {r.facts.get('gpu current temp', 'unknown')}"
            for r, wrong in bad[:8]
        ]
        if fault.group == "clocks"
        else [f"{r.device}: {', '.join(wrong)}" for r, wrong in bad[:8]],
        severity=fault.severity,
        confidence=f"reported by {bad[0][0].tool}",
        advice=[(fault.advice, fault.command)],
        of=bad[0][0].device,
    )


RULE = Rule(
    symptom="a tool of the machine reports a fault of a GPU or a port",
    needs=("readings",),
    look=check,
    decided_by="the driver's own words, by a table",
    protocol=1,
)

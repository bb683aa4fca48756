"""A link of the machine is slower than its rate, or than similar links, as a tool of the machine measured it.

What
----
Reads output of perftest (``ib_write_bw``), ``nvbandwidth``, ``p2pBandwidthLatencyTest``, ``ibstat`` and ``nvidia-smi -q``.
A measured adapter below {network%} of its port's rate; a pair of GPUs, or a GPU from the host, {pair} times slower
than the others; GPUs with NVLink that exchange data at PCIe's rate; GPUs that reach less than {pcie%} of a PCIe link;
P2P that is no faster than through the host's memory; a port at a lower rate than others of its kind; a PCIe link with
fewer lanes than both ends have, or of a lower generation while the GPU works. What is as it should be is an observation.

Why
---
A collective runs at the speed of its slowest link. A card in the wrong slot, a bad cable or P2P that the IOMMU forbids
slows every step, and the job's own log does not show it.

Known problems
--------------
perftest does not print the port's rate: unless ``ibstat`` is in the same text, the next standard rate above the measured
one is taken, and a faster port is not noticed. A GPU lowers its PCIe generation while it is idle, so that counts only from
{busy%} of utilisation on. Where more than a quarter of the links are slow they are of another kind, not faulty. Messages
below 64 KiB do not fill a link and are not judged.

References
----------
linux-rdma/perftest, README; NVIDIA/nvbandwidth; NVIDIA cuda-samples, p2pBandwidthLatencyTest; NVIDIA/nccl issues 814 and
1264; nvidia-smi(1), PCIe link generation and width (read 2026-11).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from stepscope.core.errors import Unavailable
from stepscope.core.units import format_bandwidth, format_percent
from stepscope.core.words import counted, listed
from stepscope.diagnose.rule import Advices, Finding, Limit, Lines, Rule, Statement, finding, skipped
from stepscope.machine.peaks.lookup import find
from stepscope.machine.peaks.rates import LINKS, Accelerator
from stepscope.records.imported import MachineReading
from stepscope.results.evidence import Evidence
from stepscope.results.slow_pairs import SLOW

NETWORK = Limit(
    0.8,
    unit="of the port's rate",
    source="perftest on healthy ports: 0.86 to 0.99 (QDR, HDR, 25 to 200 Gbit/s Ethernet; public outputs read 2026-11)",
)
PAIR = Limit(SLOW, unit="times slower than the median", source="as slow-link: half way between equal and half the rate")
PCIE = Limit(
    0.6,
    unit="of a PCIe link",
    source="GPUs reach 0.69 to 0.88 (A6000, H100 NVL; public outputs read 2026-11); half the lanes give 0.45 at most",
)
GAIN = Limit(
    1.05,
    unit="times the rate with P2P disabled",
    source="P2P over PCIe gives 1.2 times as much and more, NVLink 5 and more (public outputs of the test read 2026-11)",
)
BUSY = Limit(
    0.5, unit="of the time a kernel runs", source="an idle GPU reports a few per cent, a working one 80 and more"
)

_FEW = 0.25
_NETWORKS = ("ethernet", "infiniband")
_LARGE_BYTES = 1 << 16
_GBIT = 1e9 / 8
_PEAKS = {link.key: link for link in LINKS}
_TOPO = ("see which links join the GPUs, and whether P2P works", "nvidia-smi topo -m && nvidia-smi topo -p2p r")
_SLOT = ("see the slot, the riser and the BIOS's settings", "sudo lspci -vv | grep -E 'NVIDIA|LnkSta:'")
_PORT = ("see the cable and the switch's port: errors, width, speed", "ibstat; mlxlink -d mlx5_0 -m -c")
_LARGER = ("measure large messages on several queue pairs, near the card", "ib_write_bw -s 8388608 -q 4")
_NVLINK = ("see whether an NVLink is down, and Fabric Manager runs", "nvidia-smi nvlink -s && nvidia-smi -q -d FABRIC")
_ACS = ("where P2P should work, switch ACS off: NCCL user guide, Troubleshooting", "sudo lspci -vvv | grep ACSCtl")


def check(evidence: Evidence) -> Statement:
    """Look for: a link of the machine is slower than its rate, as its tools measure it."""
    judged = [
        finding
        for judge in (_adapter_findings, _port_findings, _pair_findings, _slot_findings)
        for finding in judge(evidence.readings)
    ]
    wrong = {one.subject or one.title: one for one in reversed(judged) if one.severity != "info"}
    return (
        [*wrong.values()][::-1]
        or judged
        or skipped("no rate of a link in these readings, or of messages below 64 KiB only")
    )


def _judged_finding(
    title: str, *lines: Lines, wrong: object, advice: Sequence[Advices], sure: str = "measured", of: str | None = None
) -> Finding:
    if wrong:
        return finding(title, *lines, severity="warning", confidence=sure, advice=advice, of=of)
    return finding(title, *lines, severity="info")


def _bytes_per_s_of(reading: MachineReading) -> float:
    """Bytes/s in one direction."""
    return (reading.bytes_per_s or 0.0) / (2 if "Bidirectional" in reading.test else 1)


def _devices_text(readings: Sequence[MachineReading]) -> str:
    return listed([reading.device for reading in readings], at_most=4)


def _adapter_findings(readings: Sequence[MachineReading]) -> Iterator[Finding]:
    """Yield the adapters whose measured rate is below the stated one."""
    stated = {r.device.split(" port ")[0]: r.number("rate") * _GBIT for r in readings if r.tool == "ibstat"}
    large = [r for r in readings if r.tool == "perftest" and r.number("bytes") >= _LARGE_BYTES]
    for r in {r.device: r for r in sorted(large, key=_bytes_per_s_of) if r.facts.get("dual-port") != "ON"}.values():
        measured, port = _bytes_per_s_of(r), stated.get(r.device)
        kind = {"IB": _NETWORKS[1:], "Ethernet": _NETWORKS[:1]}.get(r.facts.get("link type", ""), _NETWORKS)
        rates = sorted((link for link in LINKS if link.key.startswith(kind)), key=lambda x: x.bytes_per_s)
        fit = [link for link in rates if (link.bytes_per_s <= port if port else measured <= link.bytes_per_s * 1.03)]
        if fit:
            link = fit[-1 if port else 0]
            yield _judged_finding(
                f"{r.device} reaches {format_bandwidth(measured)} ({measured / _GBIT:.0f} Gbit/s), "
                f"{format_percent(measured / link.bytes_per_s)} of {link.name}",
                f"{r.test or 'perftest'}; it gives {format_bandwidth(link.bytes_per_s)} per direction, limit {NETWORK}",
                not port
                and "the port's rate is not in this text: where ibstat shows a faster one, it should give more",
                wrong=measured < NETWORK * link.bytes_per_s,
                sure="measured" if port else "likely: it is compared with the next standard rate above it",
                advice=(_LARGER, _PORT, _SLOT),
                of=r.device,
            )


def _port_findings(readings: Sequence[MachineReading]) -> Iterator[Finding]:
    """Yield ports that run slower than others of their kind."""
    kinds: dict[str, list[MachineReading]] = defaultdict(list)
    for r in readings:
        if r.facts.get("state", "").upper() == "ACTIVE" and r.number("rate"):
            kinds[f"{r.facts.get('link layer', '')} {r.facts.get('ca type', '')}".strip()].append(r)
    for kind, ports in kinds.items():
        ports.sort(key=lambda r: r.number("rate"))
        most = ports[-1].number("rate")
        slow = [r for r in ports if r.number("rate") < most]
        others = f"{counted(len(ports) - len(slow), 'port')} {kind}"
        yield _judged_finding(
            f"{_devices_text(slow)}: {slow[0].number('rate'):g} Gbit/s, and {most:g} on {others}"
            if slow
            else f"{others}, active at {most:g} Gbit/s",
            [f"{r.device}: {r.facts['rate']}" for r in ports[:8]],
            wrong=slow,
            sure="reported by the driver; ports may be wired to different switches on purpose",
            advice=(_PORT,),
        )


def _pair_findings(readings: Sequence[MachineReading]) -> Iterator[Finding]:
    """Yield pairs of GPUs that reach too little of their link, or cannot reach each other."""
    models = {r.facts["model"] for r in readings if "model" in r.facts}
    entry = find(models.pop()) if len(models) == 1 else None
    card = None if isinstance(entry, Unavailable) else entry
    closed = [r for r in readings if r.facts.get("peer") == "CANNOT"]
    if closed:
        yield _judged_finding(
            f"no P2P in {counted(len(closed), 'direction')} between GPUs: data goes through the host's memory",
            _devices_text(closed),
            wrong=card is None or card.peer_access,
            sure="reported by the driver; GeForce cards have no P2P by design",
            advice=(_TOPO, _ACS),
        )
    peers = [r for r in readings if "peer" in r.facts]
    if peers and not closed and not any(r.bytes_per_s for r in readings):
        yield _judged_finding(f"P2P works in {counted(len(peers), 'direction')} between GPUs", wrong=False, advice=())
    tests: dict[str, list[MachineReading]] = defaultdict(list)
    for r in readings:
        tests[r.test].append(r)
    for test, links in tests.items():
        if re.fullmatch("(?:host_to_device|device_to_host)_memcpy_ce", test):
            yield _of_test(test, links, card, None)
        elif not closed and re.match("device_to_device_memcpy_(?:read|write)_ce|.*P2P=Enabled", test):
            through = tests.get(f"{test.partition('=')[0]}=Disabled Bandwidth", [])
            yield _of_test(test, links, card, list(map(_bytes_per_s_of, through)))


def _of_test(
    test: str, links: Sequence[MachineReading], card: Accelerator | None, through: Sequence[float] | None
) -> Finding:
    """Judge the rates of one test. through: those of the host's memory, between GPUs; None: from or to the host."""
    rates = sorted(map(_bytes_per_s_of, links))
    middle, last = median(rates), format_bandwidth(rates[-1])
    text = f"{'host and GPUs' if through is None else 'GPUs'} exchange {format_bandwidth(rates[0])} to {last} per direction"
    slot = _PEAKS["pcie{}-x{}".format(*((card and card.pcie) or (3, 16)))]
    floor = slot if through is None else _PEAKS["pcie3-x16"]
    nvlink = card.link if card and through is not None else None
    by_nvlink = nvlink if rates[-1] > slot.bytes_per_s else None
    peak = by_nvlink.peer_bytes_per_s if by_nvlink else slot.bytes_per_s
    slow = [r for r in links if _bytes_per_s_of(r) * PAIR < middle]
    wrong = ""
    of_one = through is not None and slow and set.intersection(*(set(re.findall(r"GPU \d+", r.device)) for r in slow))
    if len(links) > 2 and slow and (len(slow) <= _FEW * len(links) or (of_one and len(of_one) == 1)):
        slowest = format_bandwidth(min(map(_bytes_per_s_of, slow)))
        wrong = f"{_devices_text(slow)}: {slowest}, and {format_bandwidth(middle)} in the median"
    elif nvlink and not nvlink.optional and not by_nvlink:
        wrong = f"{text}: NVLink is not in use"
    elif through and middle < GAIN * median(through):
        wrong = f"P2P gains nothing: {text}, and {format_bandwidth(median(through))} with P2P disabled"
    elif middle < PCIE * floor.bytes_per_s:
        wrong = f"{text}, {format_percent(middle / floor.bytes_per_s)} of {floor.name}"
        wrong += "" if through is None else ": P2P does not work as it should"
    return _judged_finding(
        wrong or text,
        f"{test}: {counted(len(links), 'rate')}; {(by_nvlink or slot).name} gives up to {format_bandwidth(peak)}",
        wrong=wrong,
        sure="measured; a board or a slot of an older generation gives half of it"
        if through is None
        else "measured; likely through the host's memory, or over fewer lanes",
        advice=(_SLOT,) if through is None else (_TOPO, _NVLINK if nvlink else _ACS, _SLOT),
        of="from the host" if through is None else "between GPUs",
    )


def _slot_findings(readings: Sequence[MachineReading]) -> Iterator[Finding]:
    """Yield devices whose PCIe link is narrower or older than they can."""
    for name, of in (("link width", "PCIe lanes"), ("pcie generation", "PCIe generation")):
        seen = [r for r in readings if r.number(f"{name} current") and r.number(f"{name} max")]
        low = [r for r in seen if r.number(f"{name} current") < r.number(f"{name} max")]
        if name != "link width":
            low = seen = [r for r in low if r.number("utilization gpu") >= 100 * BUSY]
        if seen:
            lines = [f"{r.device}: {r.number(f'{name} current'):g} of {r.number(f'{name} max'):g}" for r in low]
            yield _judged_finding(
                f"{of} below the maximum: {listed(lines, at_most=3)}"
                if low
                else f"{counted(len(seen), 'GPU')}: full {of}",
                [f"{r.device}: utilisation {r.facts.get('utilization gpu', 'unknown')}" for r in low[:8]],
                wrong=low,
                sure="reported by the driver; how far a slot is wired is the board's",
                advice=(_SLOT,),
            )


RULE = Rule(
    symptom="a link of the machine is slower than its rate, as its tools measure it",
    needs=("readings",),
    look=check,
    protocol=3,
    thresholds={"network": NETWORK, "pair": PAIR, "pcie": PCIE, "gain": GAIN, "busy": BUSY},
)

"""A link between ranks is slow, compared with its peak or with similar links.

What
----
Two ways. Measured pairs: names a rank, a host or a pair whose messages take 1.4 times as long as similar ones, beyond
their own scatter. Sweeps: compares the rate of the largest message with the link's peak per direction, if known (the
GPU's own links on one host, an emulated network). For gloo, which is not a ring, the bytes over the busiest link count,
not busbw.

Why
---
A collective runs at the speed of its slowest link: one port at half width halves all of it.

Known problems
--------------
The peak covers the links of a GPU, not their wiring: pairs of an 8-GPU machine with bridges only are far below it, as
the rule then says. Values above 1 are possible: NVLink SHARP adds in the switch (480 of 450 GB/s on 8 H100). No probe
identifies the NIC in use across real hosts, so only pairs are judged there. The largest message must take 10 times as
long as the smallest; otherwise start-up hides the rate.

References
----------
docs/reference/metrics.md, Collectives (communication efficiency); nccl-tests, doc/PERFORMANCE.md; NVIDIA nccl-tests issue
178: 208 GB/s on 2 GPUs of a machine with bridged pairs and 20 GB/s on 3.
"""

from __future__ import annotations

from stepscope.collectives import REGISTRY as COLLECTIVES
from stepscope.core.units import format_bandwidth, format_duration, format_percent, format_size
from stepscope.core.words import counted, in_words, plural
from stepscope.diagnose.commands import excluding, is_amd
from stepscope.diagnose.rule import Finding, Limit, Rule, Statement, finding, skipped
from stepscope.records.comm import CommRow
from stepscope.results.comm_facts import by_sweep, size_of, time_of, topology_of, why_above
from stepscope.results.evidence import Evidence
from stepscope.results.slow_pairs import SLOW, PairsVerdict, SlowEnd, SlowPair, slow_pairs

MIN_FRACTION = Limit(
    0.6,
    unit="of the link's peak per direction",
    source="healthy machines reach 0.75 to 1.07 in real logs (8 x A100 0.75 to 0.78, 8 x H100 1.07, read 2026-11); a "
    "link at half its rate reaches at most 0.54",
)
PAIR_RATIO = Limit(
    SLOW,
    unit="times the time of similar pairs",
    source="geometric mean of equal and half the rate; pairs of 4 shaped hosts are within 4% (2026-11)",
)
START_UP = Limit(
    10,
    unit="times the smallest message's time",
    source="start-up is then at most a tenth of the largest message's time",
)
_PAIRS = "stepscope comm --ops none --pairs"
_WHAT = {"egress": "sends", "ingress": "receives", "both": "sends and receives"}


def check(evidence: Evidence) -> Statement:
    """Look for: a link between ranks is slower than its peak, or than similar links."""
    verdicts = slow_pairs(evidence.comm)
    swept = by_sweep(evidence.comm)
    judged = [(name, rows[-1], share) for name, rows in swept if (share := _link_peak_share(rows))]
    findings = [f for verdict in verdicts for f in _slow_pair_findings(verdict, evidence)]
    findings += [_slow_sweep_finding(name, row, share, evidence) for name, row, share in judged if share < MIN_FRACTION]
    if findings:
        return findings
    if judged:
        name, row, share = min(judged, key=lambda sweep: sweep[2])
        size = format_size(size_of(row))
        if share > 1:
            return f"{name}: faster than the link's peak at {size}: {why_above(row)}"
        return f"{name}: {format_percent(share)} of the link's peak at {size}, limit {format_percent(MIN_FRACTION)}"
    if compared := sum(v.compared for v in verdicts):
        return f"{counted(compared, 'pair')}: none {SLOW:.1f}x slower than similar pairs"
    unknown = (
        "the largest message is too small: start-up hides the link's rate"
        if any(row.link_peak_bytes_per_s for _, rows in swept for row in rows)
        else "no pairs were measured, and the peak of the link between these ranks is unknown"
    )
    return skipped(next((v.unavailable for v in verdicts if v.unavailable), unknown), _PAIRS)


def _link_peak_share(rows: list[CommRow]) -> float | None:
    """Rate over the busiest link at the largest size / the link's peak; None where that has no meaning."""
    last, first = rows[-1], rows[0]
    peak = last.link_peak_bytes_per_s
    if not peak or time_of(last) < START_UP * time_of(first):
        return None
    if last.backend == "nccl":
        return (last.busbw_bytes_per_s or 0.0) / peak or None
    costs = COLLECTIVES.load(last.op).costs
    if "gloo" not in costs or last.hosts != last.world_size:
        return None  # ranks that share a host share its link in ways that differ between operations
    moved = size_of(last) * last.in_flight * costs["gloo"].wire_factor(last.world_size)
    return moved / (time_of(last) / 1e9) / peak or None


def _slow_sweep_finding(name: str, row: CommRow, share: float, evidence: Evidence) -> Finding:
    """Return the finding of a sweep below the peak of its link."""
    peak, topology, nccl = row.link_peak_bytes_per_s or 0.0, topology_of(evidence), row.backend == "nccl"
    joined, pairs = (0, 0) if topology is None else (len(topology.fast_pairs()), len(topology.gpu_pairs()))
    return finding(
        f"{name} reaches {format_percent(share)} of the link's peak",
        f"{format_bandwidth(share * peak)} over the busiest link at {format_size(size_of(row))}; "
        f"its peak is {format_bandwidth(peak)} per direction",
        joined < pairs and f"NVLink joins {joined} of {counted(pairs, 'GPU pair')}; the others use PCIe",
        severity="problem" if share < MIN_FRACTION / 2 else "warning",
        confidence="measured; assumes that every rank can use the whole link",
        advice=[
            ("find the link: measure every pair of ranks", _PAIRS),
            nccl
            and (
                "check whether links are down or missing",
                "rocm-smi --showtopo" if is_amd(evidence) else "nvidia-smi nvlink -s && nvidia-smi topo -m",
            ),
            nccl
            and (
                "show NCCL's transport (P2P, SHM, NET) and its number of channels",
                "export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH",
            ),
        ],
        of=name,
    )


def _slow_pair_findings(verdict: PairsVerdict, evidence: Evidence) -> list[Finding]:
    single: dict[frozenset[int], SlowPair] = {}
    for pair in verdict.pairs:
        if not pair.explained:
            single.setdefault(frozenset(pair.peer), pair)  # worst first
    nccl = any(row.backend == "nccl" for row in evidence.comm if row.cell_id == verdict.cell_id)
    return [
        *(_slow_end_finding(end, verdict, evidence) for end in verdict.ends),
        *(_slow_pair_finding(p, nvidia=nccl and not is_amd(evidence)) for p in single.values() if p.confirmed),
    ]


def _slow_end_finding(end: SlowEnd, verdict: PairsVerdict, evidence: Evidence) -> Finding:
    ranks = f"{plural(len(end.ranks), 'rank')} {in_words(end.ranks)}"
    who = ranks if end.host is None else f"host {end.host} ({ranks})"
    return finding(
        f"{who} {_WHAT[end.direction]} {end.ratio:.1f}x as slowly as the others",
        f"{end.slow} of its {counted(end.of, 'pair')} that way are slow, among {counted(verdict.world_size, 'rank')}",
        "pairs among the other ranks are not slow: the cause is this end, not its links to single peers",
        severity="problem",
        advice=[f"check the devices and cores of {ranks}"]
        if end.host is None
        else [
            "check its NIC, cable and switch port: ethtool or ibstat for the rate, errors and drops",
            ("exclude the host until it is repaired", excluding(evidence, end.host)),
        ],
        of=end.host or ranks,
    )


def _slow_pair_finding(pair: SlowPair, *, nvidia: bool) -> Finding:
    """Return the finding of one slow pair of ranks."""
    a, b = pair.peer
    where = f" ({pair.path})" if pair.path else ""
    within = "nvidia-smi nvlink -s within a host" if nvidia else "cores and memory within a host"
    return finding(
        f"messages between ranks {a} and {b}{where} take {pair.ratio:.1f}x as long as between other pairs",
        f"{format_duration(pair.time_ns)} at {format_size(pair.size_bytes)};"
        f" similar pairs {format_duration(pair.typical_ns)}",
        "seen in more than one measurement of this pair",
        advice=[
            f"check the link between the two: {within}, the switch between hosts",
            "until it is repaired, order ranks so that these two are not neighbours in the ring",
        ],
        of=f"ranks {a} and {b}",
    )


RULE = Rule(
    symptom="a link between ranks is slower than its peak, or than similar links",
    needs=("comm",),
    look=check,
    protocol=3,
    thresholds={"fraction": MIN_FRACTION, "pair": PAIR_RATIO, "start_up": START_UP},
)

"""A device computes slower than similar ones: throttled clocks, a lowered power limit, or other work on it.

What
----
Two kinds of evidence. Matrix products of `stepscope comm --matmul`, the same on every rank at the same time: the
slowest rank's median is at least {spread%} behind the fastest at {sizes} or more, always on the same rank. The
driver's power limit is below the default.

Why
---
All ranks wait for the slowest at every step. A hot GPU, a loose power cable or a forgotten `nvidia-smi -pl` slows the
whole job, and no line of code shows it.

Known problems
--------------
On CPUs, ranks share cores, caches and memory bandwidth with each other and with other processes: the usual cause is
other work, and the finding says so. Clocks are not recorded; the device's own tools show why it is slow.

References
----------
nvidia-smi -q -d PERFORMANCE (clocks event reasons); NVML API, nvmlClocksEventReasons; Sinha et al., Not all GPUs are created
equal, SC 2022: 8 to 20% between GPUs of one kind in five clusters.
"""

from __future__ import annotations

from collections import Counter

from stepscope.core.units import format_duration, format_flops, format_percent
from stepscope.core.words import counted
from stepscope.diagnose.commands import is_amd
from stepscope.diagnose.rule import Limit, Rule, Statement, advise
from stepscope.records.comm import CommRow
from stepscope.records.environment import GpuFact
from stepscope.records.finding import Finding
from stepscope.results.evidence import Evidence

MOST_SPREAD = Limit(
    value=0.10,
    unit="(slowest - fastest rank) / slowest",
    source="GPUs of one kind differ by 8% on average (Sinha et al., SC 2022)",
)
LEAST_SIZES = Limit(
    value=0.5,
    unit="of the sizes",
    source="2 ranks on a busy 2-core machine: one of 4 sizes 27% apart, the others 0 to 2% (2026-11): a transient, "
    "not the device",
)
LEAST_LIMIT = Limit(value=0.98, unit="of the default power limit", source="as stepscope doctor; limits are rounded")
_QUERY = "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER,TEMPERATURE"


def check(evidence: Evidence) -> Statement:
    products = [row for row in evidence.comm if _is_product(row)]
    capped = [gpu for gpu in _gpus(evidence) if _is_capped(gpu)]
    findings = [_capped(capped)] if capped else []
    slow = _slow_rank(products)
    if slow:
        findings.append(_slow(slow, products, "rocm-smi" if is_amd(evidence) else _QUERY))
    if findings:
        return tuple(findings)
    if products:
        worst = max(products, key=lambda row: row.rank_spread or 0.0)
        return (
            f"no rank is {format_percent(MOST_SPREAD.value)} behind at half of {counted(len(products), 'size')}; most "
            f"at one: {format_percent(worst.rank_spread or 0.0)}"
        )
    if any(gpu.power_limit_w is not None for gpu in _gpus(evidence)):
        return "power limits at their default; no matrix products were measured"
    return RULE.blind


def _slow_rank(products: list[CommRow]) -> list[CommRow]:
    """The sizes at which one and the same rank is far behind; empty unless that is half of them or more."""
    behind = [row for row in products if (row.rank_spread or 0.0) >= MOST_SPREAD.value]
    often = Counter(row.slowest_rank for row in behind).most_common(1)
    if not often or often[0][1] < LEAST_SIZES.value * len(products):
        return []
    return [row for row in behind if row.slowest_rank == often[0][0]]


def _gpus(evidence: Evidence) -> tuple[GpuFact, ...]:
    return () if evidence.environment is None else evidence.environment.gpus


def _is_product(row: CommRow) -> bool:
    return row.kind == "matmul" and row.status == "ok" and row.rank_spread is not None and row.world_size > 1


def _is_capped(gpu: GpuFact) -> bool:
    limit, default = gpu.power_limit_w, gpu.power_limit_default_w
    return limit is not None and default is not None and limit < LEAST_LIMIT.value * default


def _capped(gpus: list[GpuFact]) -> Finding:
    lowest = min(gpus, key=lambda g: (g.power_limit_w or 0.0) / (g.power_limit_default_w or 1.0))
    sentences = [
        f"GPU {g.index} ({g.name}): {g.power_limit_w:.0f} W of {g.power_limit_default_w:.0f} W" for g in gpus[:8]
    ]
    return Finding(
        severity="warning",
        title=f"power limit lowered on {counted(len(gpus), 'GPU')}: GPU {lowest.index} may draw "
        f"{lowest.power_limit_w:.0f} of {lowest.power_limit_default_w:.0f} W",
        evidence=tuple(sentences),
        confidence="certain: reported by the driver; how far clocks drop depends on the work",
        advice=(
            advise("ask the operator, or raise the limit as root", "nvidia-smi -pl WATTS"),
            advise("show what limits the clocks under load", "nvidia-smi -q -d PERFORMANCE,CLOCK,POWER"),
        ),
        subject="power limit",
    )


def _slow(slow: list[CommRow], products: list[CommRow], query: str) -> Finding:
    worst = max(slow, key=lambda row: row.rank_spread or 0.0)
    spread = worst.rank_spread or 0.0
    rate = "" if worst.flops_per_s is None else f", {format_flops(worst.flops_per_s)}"
    time = "" if worst.time_ns is None else f" ({format_duration(worst.time_ns)} a product{rate})"
    cpu = worst.device == "cpu"
    return Finding(
        severity="warning",
        title=f"rank {worst.slowest_rank} computes {format_percent(spread)} slower than the fastest rank on the "
        "same product",
        evidence=(
            f"{worst.dtype} product on every rank at once{time}",
            f"the same at {len(slow)} of {counted(len(products), 'size')}",
        ),
        stake_fraction=spread,
        confidence="likely: shared cores and memory of one host also make ranks differ"
        if cpu
        else "measured; the device's own tools show the cause",
        advice=(
            advise("check for other processes on its cores", "top -H -b -n 1 | head -30")
            if cpu
            else advise("check its host under load: clocks, temperature and clock limits", query),
            advise("measure again; if the same rank is slow, exclude its host or reduce its work", RULE.unseen_command),
        ),
        subject=f"rank {worst.slowest_rank}",
    )


RULE = Rule(
    symptom="a device computes slower than similar devices",
    sees=("comm", "environment"),
    unseen="no matrix products were measured on every rank",
    unseen_command="stepscope comm --ops none --matmul",
    look=check,
    looks_at="comm --matmul, environment",
    protocol=3,
    thresholds={"spread": MOST_SPREAD, "sizes": LEAST_SIZES, "limit": LEAST_LIMIT},
)
